//! The way to the private key: decrypts one message.

//! Keys that replies are encrypted to.

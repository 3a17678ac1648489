//! OpenPGP: what sources sent is decrypted here, and what journalists answer is encrypted here.
//!
//! **Invariant:** with `split-gpg` and `gpg-agent` this VM holds no private key.
//!
//! **Invariant:** plaintext counts only once the whole message was read and its integrity checked.

pub mod decrypt;
pub mod encrypt;
pub mod recipient;

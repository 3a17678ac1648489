//! Encrypts a reply.

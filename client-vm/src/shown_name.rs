//! Names from outside, as they may be shown and used.

//! Unpacks what a source packed: gzip.

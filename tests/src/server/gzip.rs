//! Compressing answers, which the real server does not do and a web server before it might.

use std::io::{self, Write};

use axum::http::{HeaderMap, header};
use flate2::Compression;
use flate2::write::GzEncoder;
use hyper::body::Bytes;

/// Whether the client takes gzip.
pub(super) fn is_accepted(headers: &HeaderMap) -> bool {
    headers
        .get_all(header::ACCEPT_ENCODING)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .any(|coding| {
            let mut parts = coding.split(';').map(str::trim);
            let refused = |weight: &str| weight.trim_start_matches("q=").parse() == Ok(0.0);
            parts.next() == Some("gzip") && !parts.any(refused)
        })
}

/// The text, compressed fast rather than well.
pub(super) fn compress(text: &[u8]) -> io::Result<Bytes> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
    encoder.write_all(text)?;
    encoder.finish().map(Bytes::from)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_those_who_take_it_get_it() {
        let cases = [
            ("gzip", true),
            ("deflate, gzip;q=0.5", true),
            ("gzip;q=0", false),
            ("gzip;q=0.0, br", false),
            ("identity", false),
        ];
        for (value, accepted) in cases {
            let mut headers = HeaderMap::new();
            headers.insert(header::ACCEPT_ENCODING, value.parse().unwrap());
            assert_eq!(is_accepted(&headers), accepted, "{value}");
        }
        assert!(!is_accepted(&HeaderMap::new()));
    }
}

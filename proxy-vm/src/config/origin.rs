//! The one server that the proxy connects to.

use std::fmt;
use std::net::IpAddr;

use reqwest::Url;

/// An origin: scheme, host and port, and nothing beyond. `Debug` hides it, and there is no `Display`.
#[derive(Clone, PartialEq, Eq)]
pub struct Origin(Url);

/// A text is no origin. The error does not hold the text.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum OriginError {
    /// It does not begin with `http://` or `https://`.
    #[error("it must begin with http:// or https://")]
    Scheme,
    /// It is no scheme, host and optional port, or has more than these.
    #[error("it must be a scheme, a host and an optional port, and nothing else")]
    Form,
}

impl Origin {
    /// Reads `http://HOST[:PORT]` or `https://HOST[:PORT]`, with at most a `/` after it. The host is a name of ASCII
    /// letters, or an IP address.
    ///
    /// # Errors
    /// [`OriginError`] for anything else: a path, a query, a fragment, user info, another scheme.
    pub fn parse(text: &str) -> Result<Self, OriginError> {
        let url = Url::parse(text).map_err(|_| OriginError::Form)?;
        let default_port = match url.scheme() {
            "http" => ":80",
            "https" => ":443",
            _ => return Err(OriginError::Scheme),
        };
        // A URL parser forgives much: white space, back slashes, other spellings of a host. Here the text must be what the
        // parser would write, so that what an administrator reads in the setting is what is connected to.
        let canonical = url.origin().ascii_serialization();
        let given = text.strip_suffix('/').unwrap_or(text).to_ascii_lowercase();
        if given == canonical || given.strip_suffix(default_port) == Some(canonical.as_str()) {
            Ok(Self(url))
        } else {
            Err(OriginError::Form)
        }
    }

    /// The address of `path` on this origin.
    pub(crate) fn at(&self, path: &str) -> Url {
        let mut url = self.0.clone();
        url.set_path(path);
        url
    }

    /// The port.
    #[must_use]
    pub fn port(&self) -> u16 {
        // Both schemes that there are have one.
        self.0.port_or_known_default().unwrap_or_default()
    }

    /// The host, a name or an address.
    pub(crate) fn host(&self) -> &str {
        self.0.host_str().unwrap_or_default()
    }

    /// The host, where it is an address and no name.
    #[must_use]
    pub fn address(&self) -> Option<IpAddr> {
        self.host().trim_matches(['[', ']']).parse().ok()
    }

    /// Whether the connection to it is encrypted by TLS.
    #[must_use]
    pub fn is_https(&self) -> bool {
        self.0.scheme() == "https"
    }

    /// Whether it is an onion service, whose connections Tor encrypts end to end: RFC 7686 gives it the names under
    /// `onion`, with or without a dot at their end.
    #[must_use]
    pub fn is_onion(&self) -> bool {
        let name = self.0.domain().unwrap_or_default();
        name.strip_suffix('.').unwrap_or(name).rsplit('.').next() == Some("onion")
    }

    /// Whether it is on this machine.
    #[must_use]
    pub fn is_loopback(&self) -> bool {
        self.address().is_some_and(|address| address.is_loopback())
    }
}

impl fmt::Debug for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Origin(hidden)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_origins() {
        for (text, at) in [
            ("http://example.onion", "http://example.onion/x"),
            ("http://example.onion/", "http://example.onion/x"),
            ("http://EXAMPLE.onion:80", "http://example.onion/x"),
            ("https://sd.example.org:443/", "https://sd.example.org/x"),
            ("https://sd.example.org:8443", "https://sd.example.org:8443/x"),
            ("http://127.0.0.1:8081", "http://127.0.0.1:8081/x"),
            ("http://[::1]:8081", "http://[::1]:8081/x"),
        ] {
            assert_eq!(Origin::parse(text).unwrap().at("/x").as_str(), at, "{text}");
        }
    }

    #[test]
    fn refuses_everything_else() {
        for text in [
            "",
            "example.onion",
            "http://",
            "http:example.onion",
            "http:/example.onion",
            "http:\\\\example.onion",
            "http://example.onion/api",
            "http://example.onion//",
            "http://example.onion/?",
            "http://example.onion?x=1",
            "http://example.onion/#",
            "http://user@example.onion",
            "http://user:pw@example.onion",
            "http://@example.onion",
            "http://example.onion:",
            "http://example.onion:99999",
            "http://exa mple.onion",
            "http://exam\tple.onion",
            "http://b\u{fc}cher.example",
            "http://0x7f.1",
            "ftp://example.onion",
            "socks5h://example.onion",
            "file:///etc/passwd",
        ] {
            assert!(Origin::parse(text).is_err(), "{text:?}");
        }
    }

    #[test]
    fn knows_where_it_is() {
        assert!(Origin::parse("http://example.onion:81").unwrap().is_onion());
        assert!(!Origin::parse("http://example.onion.example.org").unwrap().is_onion());
        assert!(Origin::parse("http://127.0.0.2").unwrap().is_loopback());
        assert!(Origin::parse("http://[::1]:1").unwrap().is_loopback());
        assert!(!Origin::parse("http://10.0.0.1").unwrap().is_loopback());
    }
}

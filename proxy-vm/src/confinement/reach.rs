//! What a session connects to, as far as the kernel can tell it from anything else.

use std::net::{IpAddr, SocketAddr};

use crate::config::{Config, Route};

/// What may be connected to. The kernel's rules know ports and kinds of addresses, and not the addresses themselves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reach {
    /// Nothing: a session that only tells the client why there is none.
    Nothing,
    /// One address: the SOCKS server's, or an origin's that is no name. No name is looked up, and no thread starts.
    Address(SocketAddr),
    /// An origin by its name, without Tor: this port, and what looking up a name takes. That is done by the operating
    /// system's library, in threads: it reads files and asks by UDP, and by TCP at port 53.
    Name {
        /// The origin's port.
        port: u16,
    },
}

impl Reach {
    /// What a session with these settings connects to.
    #[must_use]
    pub fn of(config: &Config) -> Self {
        match config.route {
            Route::Tor { socks } => Self::Address(socks),
            Route::Direct => match config.origin.address() {
                Some(address) => Self::Address(SocketAddr::new(address, config.origin.port())),
                None => Self::Name { port: config.origin.port() },
            },
        }
    }

    /// Whether connections over IPv4 and over IPv6 may be needed.
    pub(super) fn families(self) -> (bool, bool) {
        match self {
            Self::Nothing => (false, false),
            Self::Address(address) => match address.ip() {
                IpAddr::V4(_) => (true, false),
                IpAddr::V6(_) => (false, true),
            },
            Self::Name { .. } => (true, true),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::*;

    fn reach(settings: &[(&str, &str)]) -> Reach {
        let settings: HashMap<_, _> = settings.iter().copied().collect();
        Reach::of(&Config::load(|name| Ok(settings.get(name).map(|value| (*value).to_owned()))).unwrap())
    }

    #[test]
    fn through_tor_only_the_socks_server_is_connected_to() {
        let origin = ("SD_PROXY_ORIGIN", "https://sd.example.org:8443");
        assert_eq!(reach(&[origin]), Reach::Address("127.0.0.1:9150".parse().unwrap()));
        assert_eq!(reach(&[origin, ("SD_PROXY_SOCKS", "[::1]:9050")]), Reach::Address("[::1]:9050".parse().unwrap()));
    }

    #[test]
    fn without_tor_it_is_the_origin() {
        let direct = |origin| reach(&[("SD_PROXY_ORIGIN", origin), ("SD_PROXY_TOR", "off")]);
        assert_eq!(direct("http://10.0.0.1"), Reach::Address("10.0.0.1:80".parse().unwrap()));
        assert_eq!(direct("http://[fd00::1]:8081"), Reach::Address("[fd00::1]:8081".parse().unwrap()));
        assert_eq!(direct("https://sd.example.org"), Reach::Name { port: 443 });
    }
}

//! The names that the SOCKS server knows, and where they lead.
//!
//! **Invariant:** a name is one that no DNS knows, and its target is on the loopback.

use std::collections::BTreeMap;
use std::fmt;
use std::net::SocketAddr;

use thiserror::Error;

use super::handshake::{Reply, Target};

/// The longest name that SOCKS 5 carries, in bytes.
const LONGEST_NAME: usize = 255;

/// A name that ends in `.onion`, in lower case.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct OnionName(String);

/// A text is no name of an onion service.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error("an onion service's name is ASCII letters, digits, dots and hyphens, at most 255 bytes, and ends in `.onion`")]
pub struct OnionNameError;

impl OnionName {
    /// A name; capitals make no difference.
    ///
    /// # Errors
    /// [`OnionNameError`].
    pub fn try_new(text: &str) -> Result<Self, OnionNameError> {
        let name = text.to_ascii_lowercase();
        let allowed = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'.';
        let service = name.strip_suffix(".onion").ok_or(OnionNameError)?;
        let well_formed = name.len() <= LONGEST_NAME && name.bytes().all(allowed);
        if well_formed && service.split('.').all(|label| !label.is_empty()) {
            Ok(Self(name))
        } else {
            Err(OnionNameError)
        }
    }

    /// The name.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for OnionName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Why a name did not get into the table.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum TableError {
    /// It is none.
    #[error(transparent)]
    Name(#[from] OnionNameError),
    /// Its target is elsewhere.
    #[error("names lead to the loopback, and {0} is not on it")]
    NotLoopback(SocketAddr),
}

/// Why a target is not connected to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Refusal {
    /// It is an IP address: whoever asks by one has looked the name up elsewhere.
    Address,
    /// The table does not have the name.
    UnknownName,
    /// The table has the name, with other ports.
    UnknownPort,
    /// The command is not CONNECT.
    Command,
    /// The address is of a kind that SOCKS 5 does not have.
    AddressType,
    /// The table has it, and nobody listens there.
    TargetDown,
}

impl Refusal {
    /// What the client is answered; `unknown` is for what the table does not have.
    #[must_use]
    pub fn reply(self, unknown: Reply) -> Reply {
        match self {
            // As Tor with `SafeSocks 1`.
            Self::Address => Reply::NOT_ALLOWED,
            Self::UnknownName | Self::UnknownPort => unknown,
            Self::Command => Reply::COMMAND_NOT_SUPPORTED,
            Self::AddressType => Reply::ADDRESS_NOT_SUPPORTED,
            Self::TargetDown => Reply::CONNECTION_REFUSED,
        }
    }
}

/// Names with their ports, and where each leads.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct NameTable(BTreeMap<OnionName, BTreeMap<u16, SocketAddr>>);

impl NameTable {
    /// A table of no names.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// The same table, in which `port` of `name` leads to `target`.
    ///
    /// # Errors
    /// [`TableError`].
    pub fn with(mut self, name: &str, port: u16, target: SocketAddr) -> Result<Self, TableError> {
        let name = OnionName::try_new(name)?;
        if !target.ip().is_loopback() {
            return Err(TableError::NotLoopback(target));
        }
        self.0.entry(name).or_default().insert(port, target);
        Ok(self)
    }

    /// Where `target` leads.
    pub(super) fn look_up(&self, target: &Target) -> Result<SocketAddr, Refusal> {
        match target {
            Target::Address(_) => Err(Refusal::Address),
            Target::Name(name, port) => {
                let known = OnionName::try_new(name).ok().and_then(|name| self.0.get(&name));
                known.ok_or(Refusal::UnknownName)?.get(port).copied().ok_or(Refusal::UnknownPort)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HERE: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(std::net::Ipv4Addr::LOCALHOST), 4321);

    #[test]
    fn a_name_is_an_onion_services() {
        for name in ["example.onion", "EXAMPLE.Onion", "www.example.onion"] {
            assert_eq!(OnionName::try_new(name).unwrap().as_str(), name.to_ascii_lowercase());
        }
        let long = format!("{}.onion", "x".repeat(250));
        for name in ["", ".onion", "onion", "example.org", "a..onion", "a b.onion", "\u{fc}.onion", "a\n.onion", &long]
        {
            assert_eq!(OnionName::try_new(name), Err(OnionNameError), "{name:?}");
        }
    }

    #[test]
    fn names_lead_to_the_loopback_only() {
        let elsewhere = "192.0.2.1:80".parse().unwrap();
        assert_eq!(NameTable::new().with("a.onion", 80, elsewhere), Err(TableError::NotLoopback(elsewhere)));
        assert_eq!(NameTable::new().with("a.example", 80, HERE), Err(TableError::Name(OnionNameError)));
    }

    #[test]
    fn name_and_port_must_match() {
        let table = NameTable::new().with("a.onion", 80, HERE).unwrap();
        let ask = |name: &str, port| table.look_up(&Target::Name(name.to_owned(), port));
        assert_eq!(ask("a.onion", 80), Ok(HERE));
        assert_eq!(ask("A.ONION", 80), Ok(HERE));
        assert_eq!(ask("a.onion", 443), Err(Refusal::UnknownPort));
        assert_eq!(ask("b.onion", 80), Err(Refusal::UnknownName));
        assert_eq!(ask("localhost", 80), Err(Refusal::UnknownName));
        assert_eq!(table.look_up(&Target::Address(HERE)), Err(Refusal::Address));
    }
}

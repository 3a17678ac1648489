//! The exact version check between a front end and the daemon.

use protocol::value::SoftwareVersion;

const MAGIC: &[u8] = b"SPLC";

/// The version of this build, on both ends.
///
/// # Errors
/// None in practice: the package's version is a valid one.
pub fn own_version() -> Result<SoftwareVersion, protocol::value::ValueError> {
    SoftwareVersion::try_new(env!("CARGO_PKG_VERSION"))
}

/// The greeting did not come out.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum GreetingError {
    /// Whatever listens there is not the daemon.
    #[error("what answers on the socket is not Splitdrop's daemon")]
    NotOurs,
    /// The two ends are of different versions.
    #[error("the daemon is version {daemon} and this program is version {front_end}: restart the daemon")]
    Version {
        /// The daemon's version.
        daemon: String,
        /// This program's version.
        front_end: String,
    },
}

/// The first frame's payload of either end.
#[must_use]
pub fn greeting() -> Vec<u8> {
    [MAGIC, env!("CARGO_PKG_VERSION").as_bytes()].concat()
}

/// Checks the daemon's greeting, in a front end.
///
/// # Errors
/// [`GreetingError`].
pub fn check(payload: &[u8]) -> Result<(), GreetingError> {
    let version = payload.strip_prefix(MAGIC).ok_or(GreetingError::NotOurs)?;
    let version = std::str::from_utf8(version).ok().and_then(|text| SoftwareVersion::try_new(text).ok());
    let version = version.ok_or(GreetingError::NotOurs)?;
    if version.as_str() == env!("CARGO_PKG_VERSION") {
        return Ok(());
    }
    Err(GreetingError::Version { daemon: version.as_str().to_owned(), front_end: env!("CARGO_PKG_VERSION").to_owned() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_same_version_is_accepted() {
        assert_eq!(check(&greeting()), Ok(()));
        assert_eq!(check(b"HTTP/1.1 200 OK"), Err(GreetingError::NotOurs));
        assert_eq!(check(b"SPLC\x1b[2J"), Err(GreetingError::NotOurs));
        let older = check(b"SPLC0.0.1").unwrap_err();
        assert!(older.to_string().contains("restart the daemon"), "{older}");
    }
}

//! Who may call the proxy.

use std::fmt;

use qubes_rpc::name::VmName;

/// The VM of the client.
const DEFAULT: &str = "sd-app";
/// Far more clients than a machine has.
const MAX: usize = 32;

/// The names of the VMs that may call, one at least. dom0's policy decides before this does.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Callers(Vec<VmName>);

/// Why a call is not answered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CallerRefused {
    /// qrexec does not say who calls.
    Unknown,
    /// What it says is no name of a VM.
    Invalid,
    /// The VM is not in the list.
    NotListed(VmName),
}

impl fmt::Display for CallerRefused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unknown => f.write_str("nobody says who calls"),
            Self::Invalid => f.write_str("the caller's name is no name of a VM"),
            Self::NotListed(name) => write!(f, "{name} is not in the list"),
        }
    }
}

impl Callers {
    /// Reads names with commas between them. White space around a name is dropped.
    ///
    /// `None` when there is no name, one is not the name of a VM, or there are more than 32.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let names = text.split(',').map(|name| name.trim().parse().ok()).collect::<Option<Vec<_>>>()?;
        (names.len() <= MAX).then_some(Self(names))
    }

    /// Whether `caller`, which is `QREXEC_REMOTE_DOMAIN`, may call.
    ///
    /// # Errors
    /// [`CallerRefused`] when it may not.
    pub fn check(&self, caller: Option<&str>) -> Result<(), CallerRefused> {
        let name: VmName = caller.ok_or(CallerRefused::Unknown)?.parse().map_err(|_| CallerRefused::Invalid)?;
        if self.0.contains(&name) { Ok(()) } else { Err(CallerRefused::NotListed(name)) }
    }
}

impl Default for Callers {
    fn default() -> Self {
        Self(DEFAULT.parse().into_iter().collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn by_default_the_client_vm_calls() {
        assert_eq!(Callers::default().check(Some("sd-app")), Ok(()));
        assert_eq!(Callers::default(), Callers::parse("sd-app").unwrap());
    }

    #[test]
    fn only_who_is_listed_may_call() {
        let callers = Callers::parse("sd-app, sd-app-2").unwrap();
        assert_eq!(callers.check(Some("sd-app-2")), Ok(()));
        for other in ["sd-app-3", "sd-ap", "SD-APP", "dom0"] {
            let refused = CallerRefused::NotListed(other.parse().unwrap());
            assert_eq!(callers.check(Some(other)), Err(refused), "{other}");
        }
        assert_eq!(callers.check(None), Err(CallerRefused::Unknown));
        for nonsense in ["", "sd-app,sd-app-2", "sd-app\u{1b}[2J", " sd-app", "@dispvm"] {
            let refused = callers.check(Some(nonsense)).unwrap_err();
            assert_eq!(refused, CallerRefused::Invalid);
            assert!(!refused.to_string().contains(char::is_control));
        }
    }

    #[test]
    fn a_list_is_of_names() {
        let many = |count| vec!["a"; count].join(",");
        assert!(Callers::parse(&many(MAX)).is_some());
        for bad in ["", ",", "sd-app,", "@anyvm", "*", "sd app", "sd-app;sd-gpg", &many(MAX + 1)] {
            assert_eq!(Callers::parse(bad), None, "{bad}");
        }
    }
}

//! Names of VMs and of qrexec services.

use std::fmt;
use std::str::FromStr;

/// Qubes allows VM names of at most 31 characters.
const MAX_VM_NAME: usize = 31;
/// A service with its argument. qrexec breaks at about 3,900 bytes; ours are short.
const MAX_SERVICE: usize = 64;

/// A name was refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NameError {
    /// Not the name of a VM.
    #[error("a VM's name is a letter, then up to 30 letters, digits, `-` or `_`")]
    Vm,
    /// Neither the name of a VM nor a disposable one.
    #[error("a call goes to a VM's name, to `@dispvm`, or to `@dispvm:` and a VM's name")]
    Target,
    /// Not the name of a service.
    #[error("a service's name and argument are of letters, digits, `-`, `_` and `.`, at most 64 with the `+`")]
    Service,
}

/// The name of a VM: a letter, then letters, digits, `-` or `_`, at most 31 characters.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct VmName(String);

impl VmName {
    /// The name.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for VmName {
    type Err = NameError;

    fn from_str(text: &str) -> Result<Self, NameError> {
        let letter_first = text.bytes().next().is_some_and(|byte| byte.is_ascii_alphabetic());
        if letter_first && text.len() <= MAX_VM_NAME && text.bytes().all(|byte| is_plain(byte) && byte != b'.') {
            Ok(Self(text.to_owned()))
        } else {
            Err(NameError::Vm)
        }
    }
}

impl fmt::Display for VmName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Whom a call goes to: a VM, or a disposable one that is made for it, from the VM that is named or the usual one.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct TargetName(String);

impl TargetName {
    /// What stands for a disposable VM.
    const DISPOSABLE: &str = "@dispvm";

    /// The name, as qrexec takes it.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for TargetName {
    type Err = NameError;

    fn from_str(text: &str) -> Result<Self, NameError> {
        let vm = match text.strip_prefix(Self::DISPOSABLE) {
            Some("") => None,
            Some(rest) => Some(rest.strip_prefix(':').ok_or(NameError::Target)?),
            None => Some(text),
        };
        if vm.is_none_or(|vm| vm.parse::<VmName>().is_ok()) {
            Ok(Self(text.to_owned()))
        } else {
            Err(NameError::Target)
        }
    }
}

impl From<VmName> for TargetName {
    fn from(vm: VmName) -> Self {
        Self(vm.0)
    }
}

impl fmt::Display for TargetName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The name of a qrexec service with its argument: `splitdrop.Proxy+metadata`.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct ServiceName(String);

impl ServiceName {
    /// Joins a service and its argument.
    ///
    /// # Errors
    /// [`NameError::Service`] when a part is empty, has characters that qrexec would change, or both are too long.
    pub fn try_new(service: &str, argument: &str) -> Result<Self, NameError> {
        let valid = |part: &str| !part.is_empty() && part.bytes().all(is_plain);
        let name = format!("{service}+{argument}");
        if valid(service) && valid(argument) && name.len() <= MAX_SERVICE {
            Ok(Self(name))
        } else {
            Err(NameError::Service)
        }
    }

    /// The name as qrexec takes it.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for ServiceName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

fn is_plain(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn vm_names() {
        for good in ["sd-proxy", "a", "Work_2"] {
            assert!(good.parse::<VmName>().is_ok(), "{good}");
        }
        for bad in ["", "-rf", "2vm", "@dispvm", "a b", "a.b", "a+b", "ä", &"a".repeat(32)] {
            assert!(bad.parse::<VmName>().is_err(), "{bad}");
        }
    }

    #[test]
    fn service_names() {
        assert_eq!(ServiceName::try_new("splitdrop.Proxy", "metadata").unwrap().as_str(), "splitdrop.Proxy+metadata");
        for (service, argument) in [("", "x"), ("x", ""), ("x+y", "z"), ("x", "y z"), ("x", &"y".repeat(63))] {
            assert!(ServiceName::try_new(service, argument).is_err(), "{service} {argument}");
        }
    }

    #[test]
    fn a_call_goes_to_a_vm_or_to_a_disposable_one() {
        for name in ["sd-devices", "@dispvm", "@dispvm:sd-viewer"] {
            assert_eq!(name.parse::<TargetName>().unwrap().as_str(), name);
        }
        for name in
            ["", "@dispvm:", "@dispvmx", "@anyvm", "-rf", "sd viewer", "@dispvm:@dispvm", "@dispvm:--help", "@adminvm"]
        {
            assert_eq!(name.parse::<TargetName>(), Err(NameError::Target), "{name}");
        }
    }
}

//! The VMs of a system, as far as policy asks about them.
//!
//! **Invariant:** a [`QubeName`] is a name that Qubes OS accepts for a VM, so it can be part of a file name.

mod file;

use std::borrow::Borrow;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::LazyLock;

pub use self::file::SystemError;

/// What a feature's name begins with if it is a setting that the VM can read.
const SETTING: &str = "vm-config.";
/// The longest name of a VM, in bytes.
const NAME_CAP: usize = 31;

/// The name of a VM: a letter, then letters, digits, `_` or `-`, at most 31 bytes.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct QubeName(String);

/// A text is not the name of a VM.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not a VM's name: a letter, then at most 30 letters, digits, '_' or '-'")]
pub struct QubeNameError;

impl QubeName {
    /// Checks a name.
    ///
    /// # Errors
    ///
    /// When Qubes OS would not take it as a VM's name.
    pub fn try_new(name: impl Into<String>) -> Result<Self, QubeNameError> {
        let name = name.into();
        let rest = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'-';
        if name.len() <= NAME_CAP
            && name.starts_with(|first: char| first.is_ascii_alphabetic())
            && name.bytes().all(rest)
        {
            Ok(Self(name))
        } else {
            Err(QubeNameError)
        }
    }

    /// The name.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl Borrow<str> for QubeName {
    fn borrow(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for QubeName {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.0)
    }
}

/// The type of a VM, for `@type:` in policies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QubeKind {
    /// Takes its root file system from a template.
    App,
    /// Keeps its own root file system.
    Standalone,
    /// The root file system of others.
    Template,
    /// A disposable, named or not.
    Disposable,
}

impl QubeKind {
    /// The word that policies use after `@type:`.
    #[must_use]
    pub const fn policy_word(self) -> &'static str {
        match self {
            Self::App => "AppVM",
            Self::Standalone => "StandaloneVM",
            Self::Template => "TemplateVM",
            Self::Disposable => "DispVM",
        }
    }
}

/// Whether a VM runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Power {
    /// It runs.
    Running,
    /// It does not, and starts when a call allows it.
    Halted,
}

/// What dom0 knows of one VM.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Qube {
    /// Its type.
    pub kind: QubeKind,
    /// Its tags, for `@tag:` in policies.
    pub tags: BTreeSet<String>,
    /// The template of the disposables that it gets for `@dispvm`.
    pub default_dispvm: Option<QubeName>,
    /// Whether disposables may be made of it.
    pub template_for_dispvms: bool,
    /// Whether it runs.
    pub power: Power,
    /// What dom0 noted of it, by name.
    pub features: BTreeMap<String, String>,
}

impl Qube {
    /// A running VM of this type, with no tags and no features.
    #[must_use]
    pub const fn new(kind: QubeKind) -> Self {
        Self {
            kind,
            tags: BTreeSet::new(),
            default_dispvm: None,
            template_for_dispvms: false,
            power: Power::Running,
            features: BTreeMap::new(),
        }
    }

    /// The settings that dom0 gives it, names and values: its features `vm-config.NAME`.
    pub fn settings(&self) -> impl Iterator<Item = (&str, &str)> {
        self.features.iter().filter_map(|(name, value)| Some((name.strip_prefix(SETTING)?, value.as_str())))
    }

    /// The same VM with one more tag.
    #[must_use]
    pub fn tagged(mut self, tag: &str) -> Self {
        self.tags.insert(tag.to_owned());
        self
    }
}

/// All VMs but dom0.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct System {
    /// The VMs by name.
    pub qubes: BTreeMap<QubeName, Qube>,
}

impl System {
    /// The VM of this name.
    #[must_use]
    pub fn qube(&self, name: &str) -> Option<&Qube> {
        self.qubes.get(name)
    }

    /// The checked name, if there is such a VM.
    #[must_use]
    pub fn known(&self, name: &str) -> Option<&QubeName> {
        self.qubes.get_key_value(name).map(|(name, _)| name)
    }

    /// Reads a file of VMs; `workstation.toml` of this package shows the keys.
    ///
    /// # Errors
    ///
    /// [`SystemError`].
    pub fn parse(text: &str) -> Result<Self, SystemError> {
        file::parse(text)
    }

    /// The VMs of a SecureDrop workstation, all running.
    #[must_use]
    pub fn workstation() -> Self {
        // A test reads the file too, so it never is unreadable.
        static SHIPPED: LazyLock<System> =
            LazyLock::new(|| file::parse(include_str!("../../workstation.toml")).unwrap_or_default());
        SHIPPED.clone()
    }

    /// The same VMs, with this one halted, if it is one of them.
    #[must_use]
    pub fn with_halted(mut self, name: &str) -> Self {
        if let Some(qube) = self.qubes.get_mut(name) {
            qube.power = Power::Halted;
        }
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_what_qubes_accepts() {
        for good in ["a", "sd-app", "Work_2", "disp1234", &"x".repeat(31)] {
            assert!(QubeName::try_new(good).is_ok(), "{good}");
        }
        for bad in ["", "1st", "-a", "_a", "a b", "a/b", "a.b", "@anyvm", "é", &"x".repeat(32)] {
            assert_eq!(QubeName::try_new(bad), Err(QubeNameError), "{bad}");
        }
    }

    #[test]
    fn the_shipped_file_is_the_workstation() {
        let system = System::workstation();
        assert_eq!(System::parse(include_str!("../../workstation.toml")), Ok(system.clone()));
        let names: Vec<_> = system.qubes.keys().map(QubeName::as_str).collect();
        assert_eq!(names, ["sd-app", "sd-devices", "sd-gpg", "sd-log", "sd-printers", "sd-proxy", "sd-viewer"]);
        assert!(system.qubes.values().all(|qube| qube.power == Power::Running));
        let app = system.qube("sd-app").expect("sd-app");
        let viewer = app.default_dispvm.as_ref().expect("a default disposable");
        assert!(system.qube(viewer.as_str()).expect("sd-viewer").template_for_dispvms);
        assert!(app.tags.contains("sd-client"));
        assert_eq!(app.settings().collect::<Vec<_>>(), [("QUBES_GPG_DOMAIN", "sd-gpg")]);
    }
}

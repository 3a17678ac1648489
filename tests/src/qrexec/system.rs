//! The VMs of a system, as far as policy asks about them.
//!
//! **Invariant:** a [`QubeName`] is a name that Qubes OS accepts for a VM, so it can be part of a file name.

use std::borrow::Borrow;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

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
}

impl Qube {
    /// A running VM of this type, with no tags.
    #[must_use]
    pub const fn new(kind: QubeKind) -> Self {
        Self { kind, tags: BTreeSet::new(), default_dispvm: None, template_for_dispvms: false, power: Power::Running }
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

    /// The VMs of a SecureDrop workstation, with their tags and types, all running.
    #[must_use]
    pub fn workstation() -> Self {
        let viewer = QubeName("sd-viewer".to_owned());
        let mut qubes: BTreeMap<QubeName, Qube> = ["sd-gpg", "sd-log", "sd-devices", "sd-printers"]
            .into_iter()
            .map(|name| (name, QubeKind::App))
            .chain([("sd-proxy", QubeKind::Disposable)])
            .map(|(name, kind)| (QubeName(name.to_owned()), Qube::new(kind).tagged("sd-workstation")))
            .collect();
        let app = Qube { default_dispvm: Some(viewer.clone()), ..Qube::new(QubeKind::App) };
        qubes.insert(QubeName("sd-app".to_owned()), app.tagged("sd-workstation").tagged("sd-client"));
        let template = Qube { template_for_dispvms: true, ..Qube::new(QubeKind::App) };
        qubes.insert(viewer, template.tagged("sd-workstation"));
        Self { qubes }
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
    fn the_workstation_has_checked_names_and_the_viewer_as_disposable() {
        let system = System::workstation();
        assert!(system.qubes.keys().all(|name| QubeName::try_new(name.as_str()).is_ok()));
        let app = system.qube("sd-app").expect("sd-app");
        let viewer = app.default_dispvm.as_ref().expect("a default disposable");
        assert!(system.qube(viewer.as_str()).expect("sd-viewer").template_for_dispvms);
        assert!(app.tags.contains("sd-client"));
    }
}

//! The file that lists a system's VMs, in TOML. `workstation.toml` beside this package's manifest explains its keys.
//!
//! **Invariant:** a file that was read names only VMs that it lists, and each of them once.

use std::collections::{BTreeMap, BTreeSet};

use serde::Deserialize;

use super::{Power, Qube, QubeKind, QubeName, QubeNameError, System};

/// A file of VMs cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SystemError {
    /// It is no TOML, or has a key that means nothing here, or lacks one.
    #[error("not a file of VMs: {0}")]
    Form(String),
    /// A VM has a name that Qubes OS does not accept.
    #[error("{name:?}: {source}")]
    Name {
        /// The name.
        name: String,
        /// Why not.
        source: QubeNameError,
    },
    /// A VM is listed twice, or is dom0, which is no VM.
    #[error("{0} is listed already")]
    Twice(QubeName),
    /// A VM's `default_dispvm` is not listed, or no template for disposables.
    #[error("{vm}: its default_dispvm {template} is not listed with `template_for_dispvms = true`")]
    NoTemplate {
        /// The VM.
        vm: QubeName,
        /// What it names.
        template: QubeName,
    },
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    #[serde(default)]
    vm: Vec<Entry>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Entry {
    name: String,
    kind: Kind,
    #[serde(default)]
    tags: BTreeSet<String>,
    default_dispvm: Option<String>,
    #[serde(default)]
    template_for_dispvms: bool,
    #[serde(default)]
    power: PowerWord,
    #[serde(default)]
    features: BTreeMap<String, String>,
}

#[derive(Deserialize)]
enum Kind {
    #[serde(rename = "AppVM")]
    App,
    #[serde(rename = "StandaloneVM")]
    Standalone,
    #[serde(rename = "TemplateVM")]
    Template,
    #[serde(rename = "DispVM")]
    Disposable,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "lowercase")]
enum PowerWord {
    #[default]
    Running,
    Halted,
}

pub(super) fn parse(text: &str) -> Result<System, SystemError> {
    let file: File = toml::from_str(text).map_err(|error| SystemError::Form(error.to_string()))?;
    let mut qubes = BTreeMap::new();
    for entry in file.vm {
        let (name, qube) = qube(entry)?;
        if name.as_str() == "dom0" || qubes.contains_key(&name) {
            return Err(SystemError::Twice(name));
        }
        qubes.insert(name, qube);
    }
    let is_template = |name: &QubeName| qubes.get(name).is_some_and(|qube| qube.template_for_dispvms);
    for (vm, qube) in &qubes {
        if let Some(template) = qube.default_dispvm.as_ref().filter(|template| !is_template(template)) {
            return Err(SystemError::NoTemplate { vm: vm.clone(), template: template.clone() });
        }
    }
    Ok(System { qubes })
}

fn qube(entry: Entry) -> Result<(QubeName, Qube), SystemError> {
    let qube = Qube {
        kind: match entry.kind {
            Kind::App => QubeKind::App,
            Kind::Standalone => QubeKind::Standalone,
            Kind::Template => QubeKind::Template,
            Kind::Disposable => QubeKind::Disposable,
        },
        tags: entry.tags,
        default_dispvm: entry.default_dispvm.map(checked).transpose()?,
        template_for_dispvms: entry.template_for_dispvms,
        power: match entry.power {
            PowerWord::Running => Power::Running,
            PowerWord::Halted => Power::Halted,
        },
        features: entry.features,
    };
    Ok((checked(entry.name)?, qube))
}

fn checked(name: String) -> Result<QubeName, SystemError> {
    QubeName::try_new(name.clone()).map_err(|source| SystemError::Name { name, source })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_says_all_that_policies_and_services_ask_about() {
        let system = parse(
            "[[vm]]\nname = \"a\"\nkind = \"StandaloneVM\"\ntags = [\"t\", \"u\"]\ndefault_dispvm = \"b\"\n\
             power = \"halted\"\nfeatures = { \"vm-config.ONE\" = \"1\", gui = \"\" }\n\
             [[vm]]\nname = \"b\"\nkind = \"TemplateVM\"\ntemplate_for_dispvms = true\n",
        )
        .expect("a system");
        let a = system.qube("a").expect("a");
        let b = Qube { template_for_dispvms: true, ..Qube::new(QubeKind::Template) };
        assert_eq!((a.kind, a.power), (QubeKind::Standalone, Power::Halted));
        assert_eq!(a.tags, BTreeSet::from(["t".to_owned(), "u".to_owned()]));
        assert_eq!(a.default_dispvm.as_ref().map(QubeName::as_str), Some("b"));
        assert_eq!(a.settings().collect::<Vec<_>>(), [("ONE", "1")]);
        assert_eq!(system.qube("b"), Some(&b));
        assert_eq!(parse(""), Ok(System::default()));
    }

    #[test]
    fn what_means_nothing_is_an_error() {
        let vm = |more: &str| format!("[[vm]]\nname = \"a\"\nkind = \"AppVM\"\n{more}\n");
        for (text, expected) in [
            (vm("colour = \"red\""), "colour"),
            (vm("power = \"asleep\""), "asleep"),
            (vm("tags = \"t\""), "tags"),
            (vm("features = { x = 1 }"), "features"),
            ("[[vm]]\nname = \"a\"\nkind = \"VM\"".to_owned(), "VM"),
            ("[[vm]]\nname = \"a\"".to_owned(), "kind"),
            ("[[vms]]\nname = \"a\"".to_owned(), "vms"),
            (vm("default_dispvm = \"a b\""), "\"a b\": not a VM's name"),
            (vm("").replace("\"a\"", "\"1st\""), "\"1st\": not a VM's name"),
            (vm("").replace("\"a\"", "\"dom0\""), "dom0 is listed already"),
            ([vm(""), vm("")].concat(), "a is listed already"),
            (vm("default_dispvm = \"b\""), "a: its default_dispvm b is not listed"),
            (vm("default_dispvm = \"a\""), "a: its default_dispvm a is not listed"),
        ] {
            let error = parse(&text).expect_err(&text).to_string();
            assert!(error.contains(expected), "{text}\n{error}");
        }
    }
}

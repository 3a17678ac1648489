//! The words of a policy that stand for VMs: patterns in the source and target columns, destinations in options and in
//! what callers ask for.
//!
//! **Invariant:** only the pattern `*`, `@adminvm` and the name `dom0` match dom0.

use std::collections::BTreeSet;

use super::{Place, Refusal, SyntaxFault};
use crate::qrexec::system::{Qube, QubeName, System};

/// A word of the source or target column.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Pattern {
    /// `*`: everything, dom0 too.
    Everything,
    /// `@anyvm`: everything but dom0, also a target that is not named.
    AnyVm,
    /// `@adminvm` or `dom0`.
    AdminVm,
    /// `@default`: the caller named no target, or one that does not exist.
    Default,
    /// `@dispvm`: a new disposable of the caller's default template.
    DispVm,
    /// `@dispvm:NAME`: a new disposable of this template.
    DispVmOf(String),
    /// `@dispvm:@tag:TAG`: a new disposable of a template with this tag.
    DispVmTagged(String),
    /// `@tag:TAG`.
    Tag(String),
    /// `@type:TYPE`.
    Type(String),
    /// A VM by name; names are not checked.
    Name(String),
}

impl Pattern {
    pub(super) fn parse_source(text: &str) -> Result<Self, SyntaxFault> {
        match Self::parse(text) {
            None | Some(Self::Default | Self::DispVm) => {
                Err(SyntaxFault::Pattern { column: "source", text: text.to_owned() })
            }
            Some(pattern) => Ok(pattern),
        }
    }

    pub(super) fn parse_target(text: &str) -> Result<Self, SyntaxFault> {
        Self::parse(text).ok_or_else(|| SyntaxFault::Pattern { column: "target", text: text.to_owned() })
    }

    fn parse(text: &str) -> Option<Self> {
        let value = |value: &str| (!value.is_empty() && !value.starts_with('@')).then(|| value.to_owned());
        match text {
            "*" => Some(Self::Everything),
            "@anyvm" => Some(Self::AnyVm),
            "@adminvm" | "dom0" => Some(Self::AdminVm),
            "@default" => Some(Self::Default),
            "@dispvm" => Some(Self::DispVm),
            _ => {
                if let Some(tag) = text.strip_prefix("@dispvm:@tag:") {
                    value(tag).map(Self::DispVmTagged)
                } else if let Some(template) = text.strip_prefix("@dispvm:") {
                    value(template).map(Self::DispVmOf)
                } else if let Some(tag) = text.strip_prefix("@tag:") {
                    value(tag).map(Self::Tag)
                } else if let Some(kind) = text.strip_prefix("@type:") {
                    value(kind).map(Self::Type)
                } else {
                    value(text).map(Self::Name)
                }
            }
        }
    }

    /// Whether this matches a caller. dom0 never is one.
    pub(super) fn matches_source(&self, source: &QubeName, system: &System) -> bool {
        match self {
            Self::Everything | Self::AnyVm => true,
            Self::Tag(_) | Self::Type(_) | Self::Name(_) => self.matches_qube(source.as_str(), system),
            Self::AdminVm | Self::Default | Self::DispVm | Self::DispVmOf(_) | Self::DispVmTagged(_) => false,
        }
    }

    /// Whether this matches a target that `source` asks for.
    pub(super) fn matches_target(&self, asked: &Destination, source: &QubeName, system: &System) -> bool {
        let template = || match asked {
            Destination::DispVm => default_template(source, system).map(QubeName::as_str),
            Destination::DispVmOf(template) => Some(template.as_str()),
            Destination::AdminVm | Destination::Default | Destination::Name(_) => None,
        };
        match self {
            Self::Everything => true,
            Self::AnyVm => *asked != Destination::AdminVm,
            Self::AdminVm => *asked == Destination::AdminVm,
            Self::Default => *asked == Destination::Default,
            Self::DispVm => *asked == Destination::DispVm,
            Self::DispVmOf(wanted) => template() == Some(wanted),
            Self::DispVmTagged(tag) => template()
                .and_then(|template| system.qube(template))
                .is_some_and(|template| template.template_for_dispvms && template.tags.contains(tag)),
            Self::Tag(_) | Self::Type(_) | Self::Name(_) => {
                matches!(asked, Destination::Name(name) if self.matches_qube(name, system))
            }
        }
    }

    fn matches_qube(&self, name: &str, system: &System) -> bool {
        let known = |check: &dyn Fn(&Qube) -> bool| system.qube(name).is_some_and(check);
        match self {
            Self::Tag(tag) => known(&|qube| qube.tags.contains(tag)),
            Self::Type(kind) => known(&|qube| qube.kind.policy_word() == kind),
            Self::Name(wanted) => wanted == name,
            Self::Everything
            | Self::AnyVm
            | Self::AdminVm
            | Self::Default
            | Self::DispVm
            | Self::DispVmOf(_)
            | Self::DispVmTagged(_) => false,
        }
    }

    /// All targets that this matches in the system, for a question to dom0's user.
    pub(super) fn expand(&self, system: &System) -> BTreeSet<Destination> {
        let qubes = |check: &dyn Fn(&Qube) -> bool, make: fn(String) -> Destination| -> BTreeSet<Destination> {
            let meant = system.qubes.iter().filter(|(_, qube)| check(qube));
            meant.map(|(name, _)| make(name.as_str().to_owned())).collect()
        };
        let everything = || {
            let mut all = qubes(&|_| true, Destination::Name);
            all.extend(qubes(&|qube| qube.template_for_dispvms, Destination::DispVmOf));
            all.insert(Destination::DispVm);
            all
        };
        match self {
            Self::AnyVm => everything(),
            Self::Everything => {
                let mut all = everything();
                all.insert(Destination::AdminVm);
                all
            }
            Self::AdminVm => BTreeSet::from([Destination::AdminVm]),
            Self::Default => BTreeSet::new(),
            Self::DispVm => BTreeSet::from([Destination::DispVm]),
            Self::DispVmOf(template) => BTreeSet::from([Destination::DispVmOf(template.clone())]),
            Self::DispVmTagged(tag) => {
                qubes(&|qube| qube.template_for_dispvms && qube.tags.contains(tag), Destination::DispVmOf)
            }
            Self::Tag(tag) => qubes(&|qube| qube.tags.contains(tag), Destination::Name),
            Self::Type(kind) => qubes(&|qube| qube.kind.policy_word() == kind, Destination::Name),
            Self::Name(name) => BTreeSet::from([Destination::Name(name.clone())]),
        }
    }
}

/// One place to call: what a caller asks for, or a redirect.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Destination {
    /// Left to the policy. Never a redirect as written, though one to an unknown VM turns into it.
    Default,
    AdminVm,
    DispVm,
    DispVmOf(String),
    Name(String),
}

impl Destination {
    /// Parses what a caller asks for.
    pub(super) fn parse_asked(text: &str) -> Result<Self, Refusal> {
        match text {
            "" | "@default" => Ok(Self::Default),
            _ => Self::parse(text).ok_or(Refusal::InvalidTarget),
        }
    }

    /// Parses the value of `target=` or `default_target=`.
    pub(super) fn parse_option(option: &'static str, text: &str) -> Result<Self, SyntaxFault> {
        Self::parse(text).ok_or_else(|| SyntaxFault::Pattern { column: option, text: text.to_owned() })
    }

    fn parse(text: &str) -> Option<Self> {
        match Pattern::parse(text)? {
            Pattern::AdminVm => Some(Self::AdminVm),
            Pattern::DispVm => Some(Self::DispVm),
            Pattern::DispVmOf(template) => Some(Self::DispVmOf(template)),
            Pattern::Name(name) => Some(Self::Name(name)),
            Pattern::Everything
            | Pattern::AnyVm
            | Pattern::Default
            | Pattern::DispVmTagged(_)
            | Pattern::Tag(_)
            | Pattern::Type(_) => None,
        }
    }

    /// Looks the destination up: an unknown VM is the same as none named.
    pub(super) fn verify(self, system: &System) -> Result<Self, Refusal> {
        match self {
            Self::Name(name) if system.qube(&name).is_none() => Ok(Self::Default),
            Self::DispVmOf(template) if !system.qube(&template).is_some_and(|qube| qube.template_for_dispvms) => {
                Err(Refusal::NotATemplate)
            }
            Self::Default | Self::AdminVm | Self::DispVm | Self::DispVmOf(_) | Self::Name(_) => Ok(self),
        }
    }

    /// The VM that serves a call of `source` to this destination by the rule at `place`.
    pub(super) fn settle(self, source: &QubeName, system: &System, place: &Place) -> Result<ServiceTarget, Refusal> {
        let known = |name: &str| system.known(name).cloned().ok_or_else(|| Refusal::NoTarget(place.clone()));
        match self {
            Self::Default => Err(Refusal::NoTarget(place.clone())),
            Self::AdminVm => Ok(ServiceTarget::AdminVm),
            Self::DispVm => default_template(source, system)
                .cloned()
                .map(ServiceTarget::NewDisposable)
                .ok_or_else(|| Refusal::NoDisposable(place.clone())),
            Self::DispVmOf(template) => known(&template).map(ServiceTarget::NewDisposable),
            Self::Name(name) => known(&name).map(ServiceTarget::Qube),
        }
    }
}

/// The VM that serves a call.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ServiceTarget {
    /// dom0.
    AdminVm,
    /// This VM.
    Qube(QubeName),
    /// A disposable made for this call from this template.
    NewDisposable(QubeName),
}

fn default_template<'s>(source: &QubeName, system: &'s System) -> Option<&'s QubeName> {
    system.qube(source.as_str()).and_then(|qube| qube.default_dispvm.as_ref())
}

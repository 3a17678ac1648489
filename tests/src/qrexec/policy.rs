//! dom0's policy: reads policy files of format 5 and decides about calls.
//!
//! Follows the `qrexec` 4.4 policy parser for rules, patterns, actions and options, the lenient corners included: a
//! name in a rule may be anything that does not start with `@`, so `target=a,user=b` is a redirect to a VM of that odd
//! name. Not here: `!include` and the other directives, and `uuid:` names. A file that uses directives is an error.
//!
//! **Invariant:** a call that no rule matches is denied, and so is one that a VM makes to itself.
//! **Invariant:** one error in any file and there is no [`Policy`], so no call is allowed.

mod pattern;
mod rule;
#[cfg(test)]
mod tests;

use std::collections::BTreeSet;
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

use self::pattern::Destination;
pub use self::pattern::ServiceTarget;
use self::rule::{Action, Rule};
use super::system::{Power, QubeName, System};

/// The ending of a policy file's name; other files of the folder do not count.
const SUFFIX: &str = ".policy";

/// Why there is no policy. Every call is refused then.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PolicyError {
    /// The name of a policy file has a byte that may not be in one.
    #[error("{file}: a policy file's name may hold only a-z, 0-9, '_', '.' and '-'")]
    FileName {
        /// The file.
        file: String,
    },
    /// A line is not a rule.
    #[error("{place}: {fault}")]
    Syntax {
        /// Where.
        place: Place,
        /// What is wrong with it.
        fault: SyntaxFault,
    },
}

/// What is wrong with a line of a policy.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SyntaxFault {
    /// Fewer than five words.
    #[error("a rule is SERVICE ARGUMENT SOURCE TARGET ACTION [option=value ...]")]
    Fields,
    /// A line that starts with `!`.
    #[error("directives are not supported here: {0}")]
    Directive(String),
    /// A byte that may not be in a service's name.
    #[error("not a service: {0}")]
    Service(String),
    /// Neither `*` nor `+` with allowed bytes.
    #[error("not an argument ('*', '+' or '+text'): {0}")]
    Argument(String),
    /// An argument for every service.
    #[error("the service '*' takes only the argument '*'")]
    ArgumentOfAnyService,
    /// No such `@` word, or not in this column.
    #[error("not a {column}: {text:?}")]
    Pattern {
        /// `source`, `target` or the option.
        column: &'static str,
        /// The word.
        text: String,
    },
    /// Not allow, deny or ask.
    #[error("not an action: {0}")]
    Action(String),
    /// A word behind the action without `=`; often a comment.
    #[error("not an option: {0} (comments need a line of their own)")]
    NotAnOption(String),
    /// An option that this action does not have.
    #[error("{action} takes no option {option}")]
    UnknownOption {
        /// The action.
        action: &'static str,
        /// The option.
        option: String,
    },
    /// An option twice.
    #[error("option {0} is given twice")]
    OptionTwice(String),
    /// A value that is neither yes nor no.
    #[error("option {0} is 'yes' or 'no'")]
    NotYesOrNo(String),
    /// `allow` on `@default` without `target=`.
    #[error("allow on @default needs target=")]
    DefaultWithoutTarget,
}

/// A line of a policy file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// The file's name.
    pub file: String,
    /// The line, from 1.
    pub line: usize,
}

impl fmt::Display for Place {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}:{}", self.file, self.line)
    }
}

/// A policy folder could not be read.
#[derive(Debug, thiserror::Error)]
#[error("cannot read the policy at {path}: {source}")]
pub struct FolderError {
    /// The folder or file.
    pub path: PathBuf,
    /// Why.
    pub source: io::Error,
}

/// Reads the policy files of a folder, as names and texts for [`Policy::parse`].
///
/// # Errors
///
/// When the folder or one of its policy files cannot be read as UTF-8.
pub fn load_folder(folder: &Path) -> Result<Vec<(String, String)>, FolderError> {
    let failed = |path: &Path| {
        let path = path.to_owned();
        move |source| FolderError { path, source }
    };
    let mut files = Vec::new();
    for entry in folder.read_dir().map_err(failed(folder))? {
        let path = entry.map_err(failed(folder))?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        if is_policy_file(&name) && path.is_file() {
            let text = std::fs::read_to_string(&path).map_err(failed(&path))?;
            files.push((name, text));
        }
    }
    files.sort();
    Ok(files)
}

fn is_policy_file(name: &str) -> bool {
    name.ends_with(SUFFIX) && !name.starts_with('.')
}

/// A call that somebody wants to make.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Call {
    /// The service without its argument.
    pub service: String,
    /// The argument without its `+`; empty when there is none.
    pub argument: String,
    /// Who calls.
    pub source: QubeName,
    /// The target as the caller named it; empty for none.
    pub target: String,
}

impl Call {
    /// `SERVICE+ARGUMENT`, with the `+` also when there is no argument.
    #[must_use]
    pub fn full_name(&self) -> String {
        format!("{}+{}", self.service, self.argument)
    }
}

/// What the policy says to a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Decision {
    /// Make the call.
    Allow {
        /// Where to.
        target: ServiceTarget,
        /// The user that runs the service, unless the default one.
        user: Option<String>,
        /// Whether dom0 tells its user.
        notify: bool,
        /// Whether a halted target is started.
        autostart: bool,
    },
    /// Ask dom0's user.
    Ask {
        /// What the user may choose from, never empty.
        targets: BTreeSet<ServiceTarget>,
        /// What is chosen already; one of `targets`.
        default_target: Option<ServiceTarget>,
        /// The user that runs the service, unless the default one.
        user: Option<String>,
        /// Whether dom0 tells its user.
        notify: bool,
        /// Whether a halted target is started.
        autostart: bool,
    },
    /// Refuse the call.
    Deny {
        /// Whether dom0 tells its user.
        notify: bool,
        /// Why.
        reason: Refusal,
    },
}

/// Why a policy refuses a call. Callers never learn it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// No rule matches.
    #[error("no rule matches")]
    NoRule,
    /// A `deny` rule.
    #[error("denied by {0}")]
    Denied(Place),
    /// The caller asked for a target that is neither a name nor a word for one.
    #[error("not a target")]
    InvalidTarget,
    /// The target of `@dispvm:` is no template for disposables.
    #[error("not a template for disposables")]
    NotATemplate,
    /// The rule allows, and neither it nor the caller says where to.
    #[error("{0} leaves the target open")]
    NoTarget(Place),
    /// `@dispvm`, and the caller has no default template for disposables.
    #[error("{0} allows a disposable, and the caller has no template for it")]
    NoDisposable(Place),
    /// The target is halted, and the rule says `autostart=no`.
    #[error("{0} does not start the target")]
    NotRunning(Place),
    /// A VM calls itself.
    #[error("a VM cannot call itself")]
    SameVm,
}

/// The rules of all files, in order.
#[derive(Clone, Debug)]
pub struct Policy {
    rules: Vec<Rule>,
}

impl Policy {
    /// Parses files, given as names and texts, in the order of their names. Names that do not end in `.policy`, or
    /// that start with a dot, do not count.
    ///
    /// # Errors
    ///
    /// At the first line, or file name, that is not as it must be.
    pub fn parse<N: AsRef<str>, T: AsRef<str>>(files: &[(N, T)]) -> Result<Self, PolicyError> {
        let mut files: Vec<(&str, &str)> = files
            .iter()
            .map(|(name, text)| (name.as_ref(), text.as_ref()))
            .filter(|(name, _)| is_policy_file(name))
            .collect();
        files.sort_unstable();
        let allowed = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"_.-".contains(&byte);
        if let Some((file, _)) = files.iter().find(|(name, _)| !name.bytes().all(allowed)) {
            return Err(PolicyError::FileName { file: (*file).to_owned() });
        }
        let mut rules = Vec::new();
        for (file, text) in files {
            for (line, number) in text.lines().zip(1..) {
                let line = line.trim();
                if line.is_empty() || line.starts_with('#') {
                    continue;
                }
                let place = Place { file: file.to_owned(), line: number };
                match Rule::parse(line, &place) {
                    Ok(rule) => rules.push(rule),
                    Err(fault) => return Err(PolicyError::Syntax { place, fault }),
                }
            }
        }
        Ok(Self { rules })
    }

    /// Decides about a call, by the first rule that matches.
    #[must_use]
    pub fn evaluate(&self, call: &Call, system: &System) -> Decision {
        let asked = match Destination::parse_asked(&call.target).and_then(|asked| asked.verify(system)) {
            Ok(asked) => asked,
            Err(reason) => return Decision::Deny { notify: true, reason },
        };
        let matching = |rule: &&Rule| {
            rule.matches_but_target(call, system) && rule.target.matches_target(&asked, &call.source, system)
        };
        match self.rules.iter().find(matching) {
            None => Decision::Deny { notify: true, reason: Refusal::NoRule },
            Some(rule) => self.apply(rule, &asked, call, system),
        }
    }

    fn apply(&self, rule: &Rule, asked: &Destination, call: &Call, system: &System) -> Decision {
        let deny = |notify, reason| Decision::Deny { notify, reason };
        match &rule.action {
            Action::Deny { notify } => deny(*notify, Refusal::Denied(rule.place.clone())),
            Action::Allow(options) => {
                let wanted = options.target.as_ref().unwrap_or(asked).clone();
                let target = wanted.verify(system).and_then(|wanted| wanted.settle(&call.source, system, &rule.place));
                match target {
                    Err(reason) => deny(true, reason),
                    Ok(ServiceTarget::Qube(target)) if target == call.source => deny(true, Refusal::SameVm),
                    Ok(target) if !options.autostart && !runs(&target, system) => {
                        deny(options.notify, Refusal::NotRunning(rule.place.clone()))
                    }
                    Ok(target) => Decision::Allow {
                        target,
                        user: options.user.clone(),
                        notify: options.notify,
                        autostart: options.autostart,
                    },
                }
            }
            Action::Ask { options, default_target } => {
                let settle = |wanted: &Destination| {
                    let wanted = wanted.clone().verify(system).ok()?;
                    wanted.settle(&call.source, system, &rule.place).ok()
                };
                let mut targets = match &options.target {
                    Some(target) => settle(target).into_iter().collect(),
                    None => self.choices(call, system, &settle),
                };
                targets.retain(|target| options.autostart || runs(target, system));
                targets.remove(&ServiceTarget::Qube(call.source.clone()));
                if targets.is_empty() {
                    return deny(true, Refusal::NoTarget(rule.place.clone()));
                }
                let default_target = default_target.as_ref().and_then(settle).filter(|target| targets.contains(target));
                Decision::Ask {
                    targets,
                    default_target,
                    user: options.user.clone(),
                    notify: options.notify,
                    autostart: options.autostart,
                }
            }
        }
    }

    /// The targets that dom0's user may choose from: all that rules for this caller and service allow or ask for, less
    /// those that an earlier rule denies.
    fn choices(
        &self,
        call: &Call,
        system: &System,
        settle: &impl Fn(&Destination) -> Option<ServiceTarget>,
    ) -> BTreeSet<ServiceTarget> {
        let mut choices = BTreeSet::new();
        for rule in self.rules.iter().rev().filter(|rule| rule.matches_but_target(call, system)) {
            let meant = match rule.action.redirect() {
                Some(target) => BTreeSet::from([target.clone()]),
                None => rule.target.expand(system),
            };
            if matches!(rule.action, Action::Deny { .. }) {
                choices.retain(|choice| !meant.contains(choice));
            } else {
                choices.extend(meant);
            }
        }
        choices.iter().filter_map(settle).collect()
    }
}

fn runs(target: &ServiceTarget, system: &System) -> bool {
    match target {
        ServiceTarget::AdminVm => true,
        ServiceTarget::NewDisposable(_) => false,
        ServiceTarget::Qube(name) => system.qube(name.as_str()).is_some_and(|qube| qube.power == Power::Running),
    }
}

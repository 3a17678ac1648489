//! One line of a policy: `SERVICE ARGUMENT SOURCE TARGET ACTION [option=value ...]`.

use std::collections::BTreeMap;

use super::pattern::{Destination, Pattern};
use super::{Call, Place, SyntaxFault};
use crate::qrexec::system::System;

/// A rule.
#[derive(Clone, Debug)]
pub(super) struct Rule {
    pub(super) place: Place,
    /// `None` is `*`.
    service: Option<String>,
    /// Without its `+`; `None` is `*`.
    argument: Option<String>,
    source: Pattern,
    pub(super) target: Pattern,
    pub(super) action: Action,
}

/// What a rule does.
#[derive(Clone, Debug)]
pub(super) enum Action {
    Allow(Options),
    Ask { options: Options, default_target: Option<Destination> },
    Deny { notify: bool },
}

/// What `allow` and `ask` both take.
#[derive(Clone, Debug)]
pub(super) struct Options {
    pub(super) target: Option<Destination>,
    pub(super) user: Option<String>,
    pub(super) notify: bool,
    pub(super) autostart: bool,
}

impl Action {
    /// The value of `target=`.
    pub(super) fn redirect(&self) -> Option<&Destination> {
        match self {
            Self::Allow(options) | Self::Ask { options, .. } => options.target.as_ref(),
            Self::Deny { .. } => None,
        }
    }
}

impl Rule {
    /// Parses a line that is neither empty nor a comment.
    pub(super) fn parse(line: &str, place: &Place) -> Result<Self, SyntaxFault> {
        if line.starts_with('!') {
            return Err(SyntaxFault::Directive(line.to_owned()));
        }
        let mut words = line.split_whitespace();
        let mut column = || words.next().ok_or(SyntaxFault::Fields);
        let (service, argument, source, target, action) = (column()?, column()?, column()?, column()?, column()?);
        let service = parse_service(service)?;
        let argument = parse_argument(argument)?;
        if service.is_none() && argument.is_some() {
            return Err(SyntaxFault::ArgumentOfAnyService);
        }
        let rule = Self {
            place: place.clone(),
            service,
            argument,
            source: Pattern::parse_source(source)?,
            target: Pattern::parse_target(target)?,
            action: parse_action(action, words)?,
        };
        match rule.action {
            Action::Allow(Options { target: None, .. }) if rule.target == Pattern::Default => {
                Err(SyntaxFault::DefaultWithoutTarget)
            }
            Action::Allow(_) | Action::Ask { .. } | Action::Deny { .. } => Ok(rule),
        }
    }

    /// Whether the rule is about this service, argument and caller.
    pub(super) fn matches_but_target(&self, call: &Call, system: &System) -> bool {
        self.service.as_ref().is_none_or(|service| *service == call.service)
            && self.argument.as_ref().is_none_or(|argument| *argument == call.argument)
            && self.source.matches_source(&call.source, system)
    }
}

fn is_call_byte(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"-._".contains(&byte)
}

fn parse_service(text: &str) -> Result<Option<String>, SyntaxFault> {
    match text {
        "*" => Ok(None),
        _ if text.bytes().all(is_call_byte) => Ok(Some(text.to_owned())),
        _ => Err(SyntaxFault::Service(text.to_owned())),
    }
}

fn parse_argument(text: &str) -> Result<Option<String>, SyntaxFault> {
    match (text, text.strip_prefix('+')) {
        ("*", _) => Ok(None),
        (_, Some(argument)) if argument.bytes().all(|byte| is_call_byte(byte) || byte == b'+') => {
            Ok(Some(argument.to_owned()))
        }
        _ => Err(SyntaxFault::Argument(text.to_owned())),
    }
}

fn parse_action<'l>(action: &str, words: impl Iterator<Item = &'l str>) -> Result<Action, SyntaxFault> {
    // The action is looked at before its options, so that its fault is the one reported.
    let action = match action {
        "allow" => Word::Allow,
        "ask" => Word::Ask,
        "deny" => Word::Deny,
        _ => return Err(SyntaxFault::Action(action.to_owned())),
    };
    let mut given = Given(BTreeMap::new());
    for word in words {
        let (option, value) = word.split_once('=').ok_or_else(|| SyntaxFault::NotAnOption(word.to_owned()))?;
        if given.0.insert(option, value).is_some() {
            return Err(SyntaxFault::OptionTwice(option.to_owned()));
        }
    }
    let parsed = match action {
        Word::Deny => Action::Deny { notify: given.yes_or_no("notify", true)? },
        Word::Allow => Action::Allow(given.options()?),
        Word::Ask => Action::Ask { options: given.options()?, default_target: given.destination("default_target")? },
    };
    match given.0.into_keys().next() {
        Some(option) => Err(SyntaxFault::UnknownOption { action: action.text(), option: option.to_owned() }),
        None => Ok(parsed),
    }
}

#[derive(Clone, Copy)]
enum Word {
    Allow,
    Ask,
    Deny,
}

impl Word {
    const fn text(self) -> &'static str {
        match self {
            Self::Allow => "allow",
            Self::Ask => "ask",
            Self::Deny => "deny",
        }
    }
}

/// The options of a rule that were not taken yet.
struct Given<'l>(BTreeMap<&'l str, &'l str>);

impl Given<'_> {
    fn options(&mut self) -> Result<Options, SyntaxFault> {
        Ok(Options {
            target: self.destination("target")?,
            user: self.0.remove("user").map(str::to_owned),
            notify: self.yes_or_no("notify", false)?,
            autostart: self.yes_or_no("autostart", true)?,
        })
    }

    fn yes_or_no(&mut self, option: &'static str, absent: bool) -> Result<bool, SyntaxFault> {
        match self.0.remove(option) {
            None => Ok(absent),
            Some("yes") => Ok(true),
            Some("no") => Ok(false),
            Some(_) => Err(SyntaxFault::NotYesOrNo(option.to_owned())),
        }
    }

    fn destination(&mut self, option: &'static str) -> Result<Option<Destination>, SyntaxFault> {
        self.0.remove(option).map(|value| Destination::parse_option(option, value)).transpose()
    }
}

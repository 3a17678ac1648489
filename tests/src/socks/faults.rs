//! What goes wrong on the way, on purpose: a table of rules, looked up for every connection.
//!
//! The first rule in the table that matches and is not used up acts, and one use of it is spent. A rule about any
//! connection is looked up when the connection comes; a rule about a name when the client has said the name, unless one of
//! the first kind has been taken. So at most one rule acts on a connection.
//!
//! **Invariant:** a rule acts on at most `times` connections, also when they come at the same time.

use thiserror::Error;

use super::handshake::Reply;
use super::names::{OnionName, OnionNameError};

/// A direction of a stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Direction {
    /// From the client to the server behind the name.
    ToServer,
    /// From that server to the client.
    ToClient,
}

/// A moment in a connection's life.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Step {
    /// It was accepted; nothing is read.
    Accepted,
    /// The method was chosen; the request is not read.
    MethodChosen,
    /// The request was read and counted; it is not answered, and nothing is connected to.
    Requested,
    /// The client was told that its stream is there; no byte has moved.
    Established,
}

impl Step {
    /// In the order in which they come.
    pub const ALL: [Self; 4] = [Self::Accepted, Self::MethodChosen, Self::Requested, Self::Established];
}

/// Which connections a rule is about.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Matching {
    /// Any.
    Any,
    /// Those that ask for this name.
    Name(OnionName),
}

/// What a rule does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Act {
    /// Nothing: the connection goes as it should.
    Pass,
    /// The connection is closed at this step.
    CloseAt(Step),
    /// From this step on nothing happens, until the client goes.
    HangAt(Step),
    /// The request is answered with this and the connection is closed; nothing is connected to.
    Reply(Reply),
    /// So many bytes move in this direction; where the next one should, both sides are closed.
    DropAfter {
        /// Which bytes are counted.
        direction: Direction,
        /// How many move.
        bytes: u64,
    },
    /// So many bytes move in this direction; where the next one should, no byte moves any more in either, and both sides
    /// stay open until the client goes.
    HangAfter {
        /// Which bytes are counted.
        direction: Direction,
        /// How many move.
        bytes: u64,
    },
}

impl Act {
    /// Whether it comes before the client's request, and with it the name, is known.
    fn is_before_the_name(self) -> bool {
        match self {
            Self::CloseAt(step) | Self::HangAt(step) => step < Step::Requested,
            Self::Pass | Self::Reply(_) | Self::DropAfter { .. } | Self::HangAfter { .. } => false,
        }
    }
}

/// A rule.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SocksFault {
    /// Which connections it is about.
    pub matching: Matching,
    /// On how many connections it acts; for ever when not said.
    pub times: Option<u32>,
    /// What it does.
    pub act: Act,
}

/// Why a rule was refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum FaultError {
    /// It should act on a name before anybody has said it.
    #[error("a rule about a name cannot act before the request")]
    BeforeTheName,
    /// The name is none.
    #[error(transparent)]
    Name(#[from] OnionNameError),
}

impl SocksFault {
    /// A rule that acts on every connection.
    #[must_use]
    pub fn new(act: Act) -> Self {
        Self { matching: Matching::Any, times: None, act }
    }

    /// The same rule for `times` connections.
    #[must_use]
    pub fn times(mut self, times: u32) -> Self {
        self.times = Some(times);
        self
    }

    /// The same rule for those that ask for `name`.
    ///
    /// # Errors
    /// [`FaultError::Name`].
    pub fn for_name(mut self, name: &str) -> Result<Self, FaultError> {
        self.matching = Matching::Name(OnionName::try_new(name)?);
        Ok(self)
    }
}

/// A rule in the table, and what became of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FaultStatus {
    /// By which it is removed, and named in the log.
    pub id: u64,
    /// On how many connections it has acted.
    pub acted: u64,
    /// The rule; `times` is what is left.
    pub fault: SocksFault,
}

/// The rules, in the order in which they were added.
#[derive(Debug, Default)]
pub(super) struct FaultTable {
    last_id: u64,
    rules: Vec<FaultStatus>,
}

impl FaultTable {
    pub(super) fn add(&mut self, fault: SocksFault) -> Result<u64, FaultError> {
        if matches!(fault.matching, Matching::Name(_)) && fault.act.is_before_the_name() {
            return Err(FaultError::BeforeTheName);
        }
        self.last_id = self.last_id.saturating_add(1);
        self.rules.push(FaultStatus { id: self.last_id, acted: 0, fault });
        Ok(self.last_id)
    }

    /// Removes a rule and tells whether it was there.
    pub(super) fn remove(&mut self, id: u64) -> bool {
        let before = self.rules.len();
        self.rules.retain(|rule| rule.id != id);
        self.rules.len() != before
    }

    pub(super) fn clear(&mut self) {
        self.rules.clear();
    }

    pub(super) fn statuses(&self) -> Vec<FaultStatus> {
        self.rules.clone()
    }

    /// Spends one use of the rule that is about this connection, of which nothing is known yet.
    pub(super) fn take(&mut self) -> Option<(u64, Act)> {
        self.spend(|matching| *matching == Matching::Any)
    }

    /// Spends one use of the rule that is about this name.
    pub(super) fn take_for(&mut self, name: &str) -> Option<(u64, Act)> {
        let name = OnionName::try_new(name).ok()?;
        self.spend(|matching| match matching {
            Matching::Any => false,
            Matching::Name(wanted) => *wanted == name,
        })
    }

    fn spend(&mut self, matches: impl Fn(&Matching) -> bool) -> Option<(u64, Act)> {
        let unused = |rule: &&mut FaultStatus| rule.fault.times != Some(0) && matches(&rule.fault.matching);
        let rule = self.rules.iter_mut().find(unused)?;
        rule.acted = rule.acted.saturating_add(1);
        if let Some(times) = &mut rule.fault.times {
            *times = times.saturating_sub(1);
        }
        Some((rule.id, rule.fault.act))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const REFUSE: Act = Act::Reply(Reply::HOST_UNREACHABLE);

    #[test]
    fn rules_are_used_up_in_order() {
        let mut table = FaultTable::default();
        table.add(SocksFault::new(Act::Pass).times(1)).unwrap();
        table.add(SocksFault::new(REFUSE).times(2)).unwrap();
        table.add(SocksFault::new(REFUSE).for_name("A.onion").unwrap()).unwrap();
        let acts: Vec<_> = std::iter::from_fn(|| table.take()).collect();
        assert_eq!(acts, [(1, Act::Pass), (2, REFUSE), (2, REFUSE)]);
        assert_eq!(table.take_for("b.onion"), None);
        for _ in 0..3 {
            assert_eq!(table.take_for("a.onion"), Some((3, REFUSE)));
        }
        let acted: Vec<_> = table.statuses().iter().map(|status| status.acted).collect();
        assert_eq!(acted, [1, 2, 3]);
        assert!(table.remove(3) && !table.remove(3));
        assert_eq!(table.take_for("a.onion"), None);
    }

    #[test]
    fn a_rule_about_a_name_waits_for_the_name() {
        let mut table = FaultTable::default();
        for step in Step::ALL {
            for act in [Act::CloseAt(step), Act::HangAt(step)] {
                let added = table.add(SocksFault::new(act).for_name("a.onion").unwrap());
                assert_eq!(added.is_err(), step < Step::Requested, "{act:?}");
            }
        }
        assert_eq!(SocksFault::new(Act::Pass).for_name("a.example"), Err(FaultError::Name(OnionNameError)));
    }
}

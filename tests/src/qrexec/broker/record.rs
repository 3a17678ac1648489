//! What a broker remembers, for tests to look at.
//!
//! **Invariant:** an event is in the log before the counts that it changes are published, and every event publishes them.

use std::collections::{BTreeMap, VecDeque};
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::sync::{Mutex, MutexGuard, PoisonError};

use nix::errno::Errno;
use nix::sys::socket::{MsgFlags, recv};
use tokio::sync::watch;

use super::questions::Question;
use crate::qrexec::Ending;
use crate::qrexec::policy::{PolicyError, Refusal, ServiceTarget};
use crate::qrexec::system::QubeName;

/// The most events kept.
const EVENT_CAP: usize = 4_096;
/// The most bytes kept of what the services of one VM wrote to stderr.
const LOG_CAP: usize = 256 * 1_024;

/// One call, numbered from 1 in the order in which requests came in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CallId(pub u64);

/// Something that happened to a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    /// Which call.
    pub call: CallId,
    /// What happened.
    pub kind: EventKind,
}

/// What can happen to a call. Each one is `Requested` first and ends with `Refused`, `Withdrawn` or `Ended`, except
/// for one that is `AgentKilled` and nothing else. One that the broker's stop cuts off before its service runs has no end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EventKind {
    /// A VM asked for it; service, argument and target are cleaned.
    Requested {
        /// Who asked.
        source: QubeName,
        /// The target as asked for.
        target: String,
        /// The service without its argument.
        service: String,
        /// The argument without its `+`.
        argument: String,
    },
    /// Its name and argument are too long: the agent of the calling VM is dead, and all calls of that VM with it.
    AgentKilled {
        /// Which VM.
        vm: QubeName,
    },
    /// The policy asks dom0's user.
    Asked(Question),
    /// dom0's user has answered: to which target, or no.
    Answered(Option<ServiceTarget>),
    /// dom0 shows a note about the call.
    Notified {
        /// Whether it says that the call was allowed.
        allowed: bool,
    },
    /// It waits for its target's start.
    WaitsForStart,
    /// It gets no answer, as [`Broker::hang_next_call`](super::Broker::hang_next_call) says.
    Hung,
    /// One of its VMs has as many calls as there may be.
    TooMany,
    /// It is not made.
    Refused(RefusedBy),
    /// The caller, or its agent, is gone before there was an answer.
    Withdrawn,
    /// Its service runs.
    Started {
        /// Where.
        target: ServiceTarget,
        /// The user that it runs as, where the policy or the service's configuration names one. Only recorded, and
        /// told to the service as `USER`: here it runs as whoever runs the broker.
        user: Option<String>,
        /// The service's process; none for a socket.
        pid: Option<u32>,
    },
    /// The caller is gone while the service runs.
    CallerGone,
    /// It is over.
    Ended(Ending),
}

/// What refused a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RefusedBy {
    /// The policy.
    Policy(Refusal),
    /// The policy cannot be read.
    BrokenPolicy(PolicyError),
    /// The policy asks dom0's user, and there is nobody to answer.
    NobodyToAsk,
    /// The policy asks dom0's user, whose list of questions is full.
    TooManyQuestions,
    /// dom0's user.
    User,
    /// The target could not be started, or may not be and does not run. Callers cannot tell it from a refusal.
    NotStarted,
}

/// How many calls there were and are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Calls whose service was started.
    pub started: u64,
    /// Calls refused.
    pub refused: u64,
    /// Calls allowed whose service is missing or could not be started.
    pub failed: u64,
    /// Calls whose caller was gone while the service still ran.
    pub abandoned: u64,
    /// Calls whose service runs now.
    pub open: u64,
    /// The most that were open at the same time.
    pub max_open: u64,
    /// The most that callers had at the same time, from asking for one until it was over or they had let go of it.
    pub max_asked: u64,
}

/// See the module's documentation.
#[derive(Debug)]
pub(super) struct Record {
    counts: watch::Sender<Counts>,
    books: Mutex<Books>,
}

#[derive(Debug, Default)]
struct Books {
    last_call: u64,
    /// Those that a caller has, whether their service runs or not, each with the line to the caller. Who lets go of one and
    /// asks for the next may be heard of in the other order, but the line knows.
    asked: BTreeMap<CallId, Option<OwnedFd>>,
    events: VecDeque<Event>,
    logs: BTreeMap<String, VecDeque<u8>>,
}

impl Record {
    pub(super) fn new() -> (Self, watch::Receiver<Counts>) {
        let (counts, receiver) = watch::channel(Counts::default());
        (Self { counts, books: Mutex::default() }, receiver)
    }

    /// Numbers a new call and notes its first event. `line` is what its caller closes when it lets go of it.
    pub(super) fn open(&self, first: EventKind, line: Option<OwnedFd>) -> CallId {
        let mut books = self.books();
        books.last_call = books.last_call.saturating_add(1);
        let call = CallId(books.last_call);
        if matches!(first, EventKind::Requested { .. }) {
            books.asked.retain(|_, line| !line.as_ref().is_some_and(is_closed));
            books.asked.insert(call, line);
        }
        let asked = u64::try_from(books.asked.len()).unwrap_or(u64::MAX);
        books.push(Event { call, kind: first });
        drop(books);
        self.counts.send_modify(|counts| counts.max_asked = counts.max_asked.max(asked));
        call
    }

    pub(super) fn note(&self, call: CallId, kind: EventKind) {
        let change: fn(&mut Counts) = match &kind {
            EventKind::Refused(_) => |counts| counts.refused = counts.refused.saturating_add(1),
            EventKind::Started { .. } => |counts| {
                counts.started = counts.started.saturating_add(1);
                counts.open = counts.open.saturating_add(1);
                counts.max_open = counts.max_open.max(counts.open);
            },
            EventKind::Ended(Ending::Missing | Ending::Failed) => {
                |counts| counts.failed = counts.failed.saturating_add(1)
            }
            EventKind::Ended(_) => |counts| counts.open = counts.open.saturating_sub(1),
            EventKind::CallerGone => |counts| counts.abandoned = counts.abandoned.saturating_add(1),
            EventKind::Requested { .. }
            | EventKind::AgentKilled { .. }
            | EventKind::Asked(_)
            | EventKind::Answered(_)
            | EventKind::Notified { .. }
            | EventKind::WaitsForStart
            | EventKind::Hung
            | EventKind::TooMany
            | EventKind::Withdrawn => |_| {},
        };
        let is_over =
            matches!(kind, EventKind::Refused(_) | EventKind::Withdrawn | EventKind::CallerGone | EventKind::Ended(_));
        let mut books = self.books();
        if is_over {
            books.asked.remove(&call);
        }
        books.push(Event { call, kind });
        drop(books);
        self.counts.send_modify(change);
    }

    /// The broker's stop cuts a call off that has no end.
    pub(super) fn forget(&self, call: CallId) {
        self.books().asked.remove(&call);
    }

    /// Adds to the log of a VM's services.
    pub(super) fn log(&self, target: &str, bytes: &[u8]) {
        let mut books = self.books();
        let log = books.logs.entry(target.to_owned()).or_default();
        log.extend(bytes);
        let surplus = log.len().saturating_sub(LOG_CAP);
        log.drain(..surplus);
    }

    pub(super) fn events(&self) -> Vec<Event> {
        self.books().events.iter().cloned().collect()
    }

    pub(super) fn service_log(&self, target: &str) -> Vec<u8> {
        self.books().logs.get(target).into_iter().flatten().copied().collect()
    }

    fn books(&self) -> MutexGuard<'_, Books> {
        // Nothing is left half done by a panic: there is none between the steps.
        self.books.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Whether the other end was closed.
fn is_closed(line: &OwnedFd) -> bool {
    let flags = MsgFlags::MSG_PEEK | MsgFlags::MSG_DONTWAIT;
    matches!(recv(line.as_raw_fd(), &mut [0], flags), Ok(0) | Err(Errno::ECONNRESET))
}

impl Books {
    fn push(&mut self, event: Event) {
        if self.events.len() >= EVENT_CAP {
            self.events.pop_front();
        }
        self.events.push_back(event);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn logs_and_events_keep_the_latest() {
        let (record, _counts) = Record::new();
        record.log("a", &vec![b'x'; LOG_CAP]);
        record.log("a", b"end");
        let log = record.service_log("a");
        assert_eq!(log.len(), LOG_CAP);
        assert!(log.ends_with(b"xend"));
        assert!(record.service_log("b").is_empty());

        for _ in 0..EVENT_CAP {
            record.note(CallId(1), EventKind::CallerGone);
        }
        record.note(CallId(2), EventKind::CallerGone);
        let events = record.events();
        assert_eq!(events.len(), EVENT_CAP);
        assert_eq!(events.last().map(|event| event.call), Some(CallId(2)));
    }

    #[test]
    fn the_most_open_calls_are_remembered() {
        let (record, counts) = Record::new();
        let started = || EventKind::Started { target: ServiceTarget::AdminVm, user: None, pid: Some(1) };
        record.note(CallId(1), started());
        record.note(CallId(2), started());
        record.note(CallId(1), EventKind::Ended(Ending::Exited(0)));
        record.note(CallId(3), EventKind::Ended(Ending::Missing));
        record.note(CallId(4), EventKind::Refused(RefusedBy::NobodyToAsk));
        assert_eq!(
            *counts.borrow(),
            Counts { started: 2, refused: 1, failed: 1, open: 1, max_open: 2, ..Counts::default() }
        );
    }

    #[test]
    fn the_most_calls_that_callers_had_are_remembered() {
        let (record, counts) = Record::new();
        let requested = || EventKind::Requested {
            source: QubeName::try_new("a").unwrap(),
            target: "b".to_owned(),
            service: "c".to_owned(),
            argument: String::new(),
        };
        let ends = [
            EventKind::Withdrawn,
            EventKind::Refused(RefusedBy::NobodyToAsk),
            EventKind::CallerGone,
            EventKind::Ended(Ending::Missing),
        ];
        for end in ends {
            let (first, second) = (record.open(requested(), None), record.open(requested(), None));
            record.note(first, EventKind::WaitsForStart);
            record.note(first, end);
            record.note(second, EventKind::Ended(Ending::Lost));
        }
        assert_eq!(counts.borrow().max_asked, 2);
        // A caller that has let go is not counted, whether that was heard of or not.
        let (ours, theirs) = std::os::unix::net::UnixStream::pair().unwrap();
        let (_held, other) = std::os::unix::net::UnixStream::pair().unwrap();
        let gone = record.open(requested(), Some(ours.into()));
        record.open(requested(), Some(other.into()));
        drop(theirs);
        record.open(requested(), None);
        assert_eq!(counts.borrow().max_asked, 2);
        record.note(gone, EventKind::CallerGone);
        record.open(requested(), None);
        assert_eq!(counts.borrow().max_asked, 3);
    }
}

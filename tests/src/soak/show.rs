//! What a soak tells: its progress on a terminal, and its figures.

use std::io::{self, IsTerminal as _, Write as _};
use std::time::Duration;

use control::{ActState, Failure, QueueEntry, Taken};
use serde_json::json;
use tokio::time::Instant;

use super::{SoakError, SoakOptions};
use crate::server::{Control, LoggedRequest};

/// How often progress is told.
const PAUSE: Duration = Duration::from_millis(250);

/// Whether the request is about an act: neither a list nor a session.
pub(super) fn is_act(request: &LoggedRequest) -> bool {
    request.method != "GET" && !["/api/v1/token", "/api/v1/logout"].contains(&request.path.as_str())
}

/// What happened.
#[derive(Debug, Default)]
pub(super) struct Figures {
    /// Whether each "VM" had its network namespace.
    pub(super) isolated: bool,
    pub(super) rounds: u64,
    pub(super) kills: u64,
    /// Kills after which acts waited, and those of which nobody knew what had become of an act.
    left_waiting: u64,
    left_unconfirmed: u64,
    /// Acts that were taken.
    acts: u64,
    /// Acts that got no answer and were asked for again.
    repeated: u64,
    /// Those of them that had been taken.
    had_been_taken: u64,
    changes: u64,
    most: u64,
    requests: u64,
    logins: u64,
    faults: u64,
}

impl Figures {
    pub(super) fn taken(&mut self, again: bool, answer: &Result<Taken, Failure>) {
        self.acts += 1;
        self.repeated += u64::from(again);
        // It was not found, or nothing was to be done.
        let had_been_taken = answer.as_ref().map_or(true, |taken| taken.act.is_none());
        self.had_been_taken += u64::from(again && had_been_taken);
    }

    /// Counts what a daemon finds that was just started; the one that a round begins with has nothing to do.
    pub(super) fn found(&mut self, queue: &[QueueEntry]) {
        let any = |state| u64::from(queue.iter().any(|entry| entry.state == state));
        self.left_waiting += any(ActState::Waiting);
        self.left_unconfirmed += any(ActState::Unconfirmed);
    }

    /// Counts what the server saw.
    pub(super) fn of_requests(&mut self, control: &Control) {
        let count = |which: &dyn Fn(&LoggedRequest) -> bool| {
            let count = control.with_log(|log| log.requests().filter(|request| which(request)).count());
            u64::try_from(count).unwrap_or(u64::MAX)
        };
        self.requests = count(&is_act);
        self.faults = count(&|request| request.fault.is_some());
        self.logins = control.count("POST", "/api/v1/token");
        let changes = control.with_world(|world| world.changes());
        (self.changes, self.most) = (changes.total(), changes.most());
    }
}

/// Tells how it goes, and how it went.
#[derive(Debug)]
pub(super) struct Show {
    options: SoakOptions,
    pub(super) figures: Figures,
    began: Instant,
    on_terminal: bool,
    last: Instant,
    doing: String,
}

impl Show {
    pub(super) fn new(options: SoakOptions) -> Self {
        let now = Instant::now();
        let on_terminal = io::stderr().is_terminal();
        Self { options, figures: Figures::default(), began: now, on_terminal, last: now, doing: String::new() }
    }

    /// From here on time counts.
    pub(super) fn begin(&mut self) {
        self.began = Instant::now();
    }

    /// What is being done, for people.
    pub(super) fn note(&mut self, doing: &str) {
        doing.clone_into(&mut self.doing);
        if !self.on_terminal || self.last.elapsed() < PAUSE {
            return;
        }
        self.last = Instant::now();
        let Figures { kills, rounds, acts, .. } = &self.figures;
        let wanted = self.options.kills;
        // Who does not see it misses nothing.
        let _ = write!(io::stderr(), "\r\x1b[Kkill {kills} of {wanted}, round {rounds}, {acts} acts: {doing}");
    }

    /// What is still to be sent.
    pub(super) fn waits(&mut self, queue: &[QueueEntry]) {
        match queue.first() {
            None => self.note("waiting"),
            Some(first) => self.note(&format!("waiting for {} acts about sources, first {first:?}", queue.len())),
        }
    }

    /// What was being done last.
    pub(super) fn doing(&self) -> &str {
        &self.doing
    }

    /// Prints the figures, and what is wrong.
    pub(super) fn end(&self, error: Option<&SoakError>) -> io::Result<()> {
        if self.on_terminal {
            let _ = write!(io::stderr(), "\r\x1b[K");
        }
        let SoakOptions { kills: _, acts: _, seed, json } = self.options;
        let Figures {
            isolated,
            rounds,
            kills,
            left_waiting,
            left_unconfirmed,
            acts,
            repeated,
            had_been_taken,
            changes,
            most,
            requests,
            logins,
            faults,
        } = &self.figures;
        let took = self.began.elapsed();
        let mut out = io::stdout().lock();
        if json {
            let object = json!({
                "format": 1,
                "result": if error.is_none() { "ok" } else { "failed" },
                "seed": seed,
                "isolated": isolated,
                "rounds": rounds,
                "kills": kills,
                "left_waiting": left_waiting,
                "left_unconfirmed": left_unconfirmed,
                "acts": acts,
                "repeated": repeated,
                "had_been_taken": had_been_taken,
                "changes": changes,
                "most": most,
                "requests": requests,
                "logins": logins,
                "faults": faults,
                "took_ms": u64::try_from(took.as_millis()).unwrap_or(u64::MAX),
                "error": error.map(ToString::to_string),
            });
            return writeln!(out, "{object}");
        }
        writeln!(
            out,
            "{kills} kills in {rounds} rounds; {left_waiting} left acts that waited, {left_unconfirmed} such that might have been done"
        )?;
        writeln!(
            out,
            "{acts} acts; {repeated} got no answer and were repeated, {had_been_taken} of these had been taken already"
        )?;
        writeln!(
            out,
            "{requests} requests for them, {faults} met a fault; {changes} changes at the server, each made {most} time(s) at most"
        )?;
        writeln!(out, "{logins} logins, {:.1} s, seed {seed}", took.as_secs_f64())?;
        match error {
            None => writeln!(out, "Every act had its effect once, and what is shown is what the server has."),
            Some(error) => writeln!(out, "FAILED with seed {seed}:\n{error}"),
        }
    }
}

//! When the daemon is killed.
//!
//! **Invariant:** a moment is told by the order of what happens, at the server, in dom0 or in front of the journalist, and a
//! few milliseconds at most are drawn on top of that.

use std::convert::Infallible;
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tokio::sync::watch;

use crate::environment::Environment;
use crate::generator::Prng;
use crate::server::{LoggedRequest, RequestLog};

/// How many requests at most lie between two kills. A login and its sync make five.
const MOST_REQUESTS: u64 = 30;
/// How many qrexec calls.
const MOST_CALLS: u64 = 6;
/// The longest delay, in milliseconds.
const LONGEST_DELAY_MS: u64 = 30;

/// A moment in a run; numbers count from its beginning.
#[derive(Debug, Clone, Copy)]
enum Moment {
    /// The server has begun this request.
    Begun(u64),
    /// The server has done what this request asked and is about to answer, or has given up.
    Done(u64),
    /// So many qrexec calls have been let through.
    Calls(u64),
    /// The daemon has given so many answers to the journalist.
    Answers(u64),
}

/// Kills the daemon, as often as wanted.
#[derive(Debug)]
pub(super) struct Killer {
    left: u32,
    most_answers: u64,
    dice: Prng,
    next: Option<(Moment, Duration)>,
    struck: bool,
}

impl Killer {
    pub(super) fn new(kills: u32, acts: u32, dice: Prng) -> Self {
        Self { left: kills, most_answers: u64::from(acts / 8).max(2), dice, next: None, struck: false }
    }

    /// Whether more kills are to come.
    pub(super) fn goes_on(&self) -> bool {
        self.left > 0
    }

    /// Kills the daemon at the next moment, once, and never ends. Cancelled before that, the moment stays the same.
    pub(super) async fn strike(&mut self, environment: &Environment, answers: &watch::Sender<u64>) -> Infallible {
        if self.left > 0 {
            let (moment, delay) = match self.next {
                Some(next) => next,
                None => (self.draw(environment, answers), self.delay()),
            };
            self.next = Some((moment, delay));
            until(moment, environment, answers).await;
            tokio::time::sleep(delay).await;
            if let Some(pid) = environment.daemon_pid().and_then(|pid| i32::try_from(pid).ok()) {
                // It can only fail where the daemon has ended by itself, which whoever talks to it will notice too.
                let _ = kill(Pid::from_raw(pid), Signal::SIGKILL);
            }
            (self.next, self.struck) = (None, true);
            self.left -= 1;
        }
        std::future::pending().await
    }

    /// Whether the daemon was killed since this was asked last.
    pub(super) fn take_struck(&mut self) -> bool {
        std::mem::take(&mut self.struck)
    }

    fn draw(&mut self, environment: &Environment, answers: &watch::Sender<u64>) -> Moment {
        let requests = environment.server().control().with_log(RequestLog::total);
        match self.dice.below(4) {
            0 => Moment::Begun(requests + 1 + self.dice.below(MOST_REQUESTS)),
            1 => Moment::Done(requests + 1 + self.dice.below(MOST_REQUESTS)),
            2 => Moment::Calls(environment.broker().counts().started + 1 + self.dice.below(MOST_CALLS)),
            _ => Moment::Answers(*answers.borrow() + 1 + self.dice.below(self.most_answers)),
        }
    }

    /// None in half of the cases.
    fn delay(&mut self) -> Duration {
        match self.dice.chance(1, 2) {
            true => Duration::ZERO,
            false => Duration::from_millis(self.dice.below(LONGEST_DELAY_MS)),
        }
    }
}

/// Waits until a moment, which may have been. Cancel-safe.
async fn until(moment: Moment, environment: &Environment, answers: &watch::Sender<u64>) {
    let control = environment.server().control();
    match moment {
        Moment::Begun(number) => control.wait_for_log(|log| log.total() >= number).await,
        Moment::Done(number) => {
            let done = |request: &LoggedRequest| request.status.is_some() || request.ended.is_some();
            control.wait_for_log(|log| log.requests().any(|one| one.number >= number && done(one))).await;
        }
        Moment::Calls(count) => environment.broker().until(|counts| counts.started >= count).await,
        Moment::Answers(count) => {
            // The sender outlives this.
            let _ = answers.subscribe().wait_for(|answers| *answers >= count).await;
        }
    }
}

//! A soak: the daemon is killed at random moments while a journalist acts and the network fails, and in the end every act
//! has had its effect exactly once.
//!
//! It goes in rounds. In each one sources write, the journalist stars, marks as seen, answers and deletes, each object
//! once, and waits until nothing is left to be sent; then what is shown is compared with what the server has, and what was
//! answered with what the sources read, and what is left of the round is deleted in the same way. Whenever the daemon was
//! killed it is started again, and the journalist signs in and repeats the act that got no answer, if there is one. Rounds
//! follow until there were as many kills as wanted.
//!
//! **Invariant:** whatever a source, an act, a fault and a moment are drawn from comes from the seed. What then happens at
//! that moment does not: two processes are at work, and others beside them.

mod check;
mod deeds;
mod driver;
mod kills;
mod show;

use std::io;
use std::time::Duration;

use control::client::ClientError;
use nix::sys::signal::Signal;
use protocol::value::ValueError;
use tokio::sync::watch;

use self::check::Check;
use self::deeds::{Changed, Deed};
use self::driver::{Driver, Stop};
use self::kills::Killer;
use self::show::Show;
use crate::demo::{DemoError, Left};
use crate::environment::{Environment, EnvironmentError, EnvironmentOptions, QUIET};
use crate::generator::{MARLOW, Prng};
use crate::programs::{BuildError, Programs};
use crate::server::{Command, ControlError, RecordId, WorldError};
use crate::socks::{Shape, Way};

/// What is there before the first round, so that lists are never empty.
const BYSTANDERS: u32 = 5;
const ITEMS: u32 = 3;
/// What goes wrong is tried again soon.
const SHORT_WAITS: &str = "[acts]\nfirst_wait_ms = 20\nmost_wait_ms = 200\n";
/// How long a request is on its way, and an answer, so that there is time in which the server has done what the daemon does
/// not know of.
const ON_THE_WAY: Duration = Duration::from_millis(2);
const ON_THE_WAY_BACK: Duration = Duration::from_millis(4);
/// How long a run may take: bounds for what hangs, not measures.
const BOUND: Duration = Duration::from_secs(120);
const BOUND_OF_A_KILL: Duration = Duration::from_secs(10);
const BOUND_OF_AN_ACT: Duration = Duration::from_millis(500);

/// What is done.
#[derive(Debug, Clone, Copy)]
pub struct SoakOptions {
    /// How often the daemon is killed.
    pub kills: u32,
    /// How many acts a round has, beside those that delete what is left of it.
    pub acts: u32,
    /// What everything random comes from.
    pub seed: u64,
    /// Whether the figures are printed as one JSON object.
    pub json: bool,
}

/// A soak failed.
#[derive(Debug, thiserror::Error)]
pub enum SoakError {
    /// The programs could not be built.
    #[error(transparent)]
    Build(#[from] BuildError),
    /// The world could not be made.
    #[error(transparent)]
    World(#[from] WorldError),
    /// The environment failed.
    #[error(transparent)]
    Environment(#[from] EnvironmentError),
    /// The staging server refused to be played with.
    #[error(transparent)]
    Control(#[from] ControlError),
    /// The server has what the protocol does not.
    #[error(transparent)]
    Value(#[from] ValueError),
    /// The daemon answered otherwise than it must.
    #[error(transparent)]
    Client(#[from] ClientError),
    /// What is left could not be looked at.
    #[error(transparent)]
    Ending(#[from] DemoError),
    /// Reading or writing failed.
    #[error("could not read or write")]
    Io(#[from] io::Error),
    /// Something is not as it must be.
    #[error("{0}")]
    Wrong(String),
}

fn wrong(text: impl Into<String>) -> SoakError {
    SoakError::Wrong(text.into())
}

/// Runs a soak. Progress goes to standard error, the figures to standard output.
///
/// # Errors
/// [`SoakError`]; what differs has been printed.
pub async fn run(options: SoakOptions) -> Result<(), SoakError> {
    let mut show = Show::new(options);
    let bound = BOUND + BOUND_OF_A_KILL * options.kills + BOUND_OF_AN_ACT * options.acts;
    show.note("building the programs with cargo");
    let programs = tokio::task::spawn_blocking(|| Programs::build(|_| {})).await;
    let programs = programs.map_err(|_| wrong("the build was cut off"))??;
    show.begin();
    let result = match tokio::time::timeout(bound, soak(programs, options, &mut show)).await {
        Ok(result) => result,
        Err(_) => Err(wrong(format!("not at its end after {} s: {}", bound.as_secs(), show.doing()))),
    };
    show.end(result.as_ref().err())?;
    result
}

async fn soak(programs: Programs, options: SoakOptions, show: &mut Show) -> Result<(), SoakError> {
    let mut made_of = EnvironmentOptions::with_sources(BYSTANDERS, ITEMS)?;
    made_of.client_config = format!("{QUIET}{SHORT_WAITS}");
    made_of.server.seed = options.seed;
    let mut environment = Environment::start(programs, made_of).await?;
    environment.isolation().tell_if_missing()?;
    show.figures.isolated = environment.isolation().missing().is_none();
    environment.socks().set_shape(Shape {
        connect_delay: ON_THE_WAY,
        to_server: Way { delay: ON_THE_WAY, rate: None },
        to_client: Way { delay: ON_THE_WAY_BACK, rate: None },
    });
    environment.start_daemon().await?;
    let control = environment.server().control();
    let journalist = control.with_world(|world| world.journalist_named(MARLOW.username).map(|who| who.id.clone()));
    let journalist = journalist.ok_or_else(|| wrong("the server has no journalist"))?;
    let mut dice = Prng::new(options.seed);
    let killer = Killer::new(options.kills, options.acts, Prng::new(dice.next_u64()));
    let mut soak =
        Soak { environment, journalist, dice, killer, answers: watch::Sender::new(0), done: Changed::default() };
    let all = soak.rounds(usize::try_from(options.acts).unwrap_or(usize::MAX), show).await;
    let Soak { mut environment, .. } = soak;
    show.figures.of_requests(environment.server().control());
    all?;
    show.note("ending");
    let code = environment.stop_daemon(Signal::SIGTERM).await?;
    let left = Left::of(environment).await?;
    if code != Some(0) || !left.is_nothing() {
        return Err(wrong(format!("the daemon ended with {code:?} and left {left}")));
    }
    Ok(())
}

struct Soak {
    environment: Environment,
    journalist: RecordId,
    dice: Prng,
    killer: Killer,
    /// How often the daemon has answered.
    answers: watch::Sender<u64>,
    /// What all acts so far must have changed at the server.
    done: Changed,
}

impl Soak {
    /// At least one.
    async fn rounds(&mut self, acts: usize, show: &mut Show) -> Result<(), SoakError> {
        loop {
            show.figures.rounds += 1;
            self.round(acts, show).await?;
            if !self.killer.goes_on() {
                return Ok(());
            }
        }
    }

    async fn round(&mut self, acts: usize, show: &mut Show) -> Result<(), SoakError> {
        let control = self.environment.server().control().clone();
        let mut deeds = deeds::of_a_round(&control, &self.journalist, acts, &mut self.dice)?;
        self.perform(&mut deeds, show).await?;
        let mut rest = deeds::rest_of_a_round(&control, &deeds)?;
        self.perform(&mut rest, show).await?;
        control.apply(Command::Purge)?;
        Ok(())
    }

    /// Performs acts until nothing waits, through however many kills, and compares.
    async fn perform(&mut self, deeds: &mut [Deed], show: &mut Show) -> Result<(), SoakError> {
        let mut synced = false;
        loop {
            let driver = Driver {
                environment: &self.environment,
                answers: &self.answers,
                dice: &mut self.dice,
                deeds: &mut *deeds,
                synced: &mut synced,
                show: &mut *show,
            };
            let worked = tokio::select! {
                worked = driver.work() => worked,
                never = self.killer.strike(&self.environment, &self.answers) => match never {},
            };
            let struck = self.killer.take_struck();
            match worked {
                Ok(()) if !struck => break,
                Err(Stop::Failed(error)) => return Err(error),
                Err(Stop::Gone(error)) if !struck => {
                    return Err(wrong(format!("the daemon ended by itself: {error}")));
                }
                Ok(()) | Err(Stop::Gone(_)) => {}
            }
            show.figures.kills += 1;
            self.environment.stop_daemon(Signal::SIGKILL).await?;
            self.environment.start_daemon().await?;
        }
        show.note("comparing");
        let check = Check { environment: &self.environment, journalist: &self.journalist };
        check.replies(deeds).await?;
        for deed in deeds {
            self.done.once.append(&mut deed.changes.once);
            self.done.at_most_once.append(&mut deed.changes.at_most_once);
        }
        check.all(&self.done).await
    }
}

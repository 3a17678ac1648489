//! A staging environment to play with, until Ctrl-C.

use std::io::{self, Write as _};
use std::time::Duration;

use tokio::signal::unix::{SignalKind, signal};

use crate::demo::DemoError;
use crate::environment::{Environment, EnvironmentOptions, ONION, PROXY_VM};
use crate::programs::Programs;
use crate::qrexec::broker::{Costs, Start};
use crate::server::ServerOptions;
use crate::socks::Shape;
use crate::trace;

/// How many items the generated sources have.
const ITEMS: u32 = 4;

/// How slow things are.
#[derive(Debug, Clone, Copy)]
pub struct Pace {
    /// How long the proxy's VM takes to start at the first call; without, it runs already.
    pub vm_start: Option<Duration>,
    /// What each qrexec call costs.
    pub calls: Costs,
    /// What each exchange with the server, and each connection to it, takes longer.
    pub network: Duration,
}

/// Starts an environment with `sources` sources, prints how to use it, and ends it at Ctrl-C or SIGTERM.
///
/// # Errors
/// [`DemoError`].
pub async fn run(sources: u32, pace: Pace) -> Result<(), DemoError> {
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut terminate = signal(SignalKind::terminate())?;
    writeln!(io::stderr(), "building the programs with cargo; on a fresh clone this takes minutes ...")?;
    let programs = tokio::task::spawn_blocking(|| Programs::build(|_| {})).await;
    let programs = programs.map_err(|_| DemoError::Wrong("the build was cut off".to_owned()))??;
    let mut options = EnvironmentOptions::with_sources(sources, ITEMS)?;
    // As on a workstation: what happens by itself does.
    options.client_config = String::new();
    options.server.control_listener = Some(ServerOptions::LOOPBACK);
    options.server.throttle_logins = true;
    options.qrexec.costs = pace.calls;
    if let Some(start) = pace.vm_start {
        options.qrexec.start = Start::After(start);
        options.system = options.system.with_halted(PROXY_VM);
    }
    let mut environment = Environment::start(programs, options).await?;
    environment.isolation().tell_if_missing()?;
    environment.socks().set_shape(Shape::round_trip(pace.network));
    trace::start(environment.directory())?;
    environment.start_daemon().await?;
    print_help(&environment)?;
    tokio::select! {
        _ = interrupt.recv() => {}
        _ = terminate.recv() => {}
    }
    writeln!(io::stderr(), "ending ...")?;
    Ok(environment.stop().await?)
}

fn print_help(environment: &Environment) -> io::Result<()> {
    let mut out = io::stdout().lock();
    writeln!(out, "A staging environment is up. In another terminal:\n")?;
    for (name, value) in environment.variables() {
        if name != "HOME" {
            writeln!(out, "  export {name}='{}'", value.display())?;
        }
    }
    let staging = std::env::current_exe()?;
    let (staging, splitdrop) = (staging.display(), environment.splitdrop_program().display());
    writeln!(out, "\n  '{staging}' credentials | '{splitdrop}' login --credentials-stdin")?;
    for command in ["status", "sources", "refresh", "watch", "logout"] {
        writeln!(out, "  '{splitdrop}' {command}")?;
    }
    if let Some(origin) = environment.server().control_origin() {
        let url = format!("{origin}/control");
        writeln!(
            out,
            "\nPlay the sources (a source writes; the source's id is in the answer or in `sources --json`):\n"
        )?;
        writeln!(out, "  '{staging}' play {url} '{{\"do\":\"new_source\"}}'")?;
        writeln!(out, "  '{staging}' play {url} '{{\"do\":\"new_message\",\"source\":\"ID\"}}'")?;
        writeln!(out, "  '{staging}' play {url} '{{\"do\":\"new_file\",\"source\":\"ID\"}}'")?;
        writeln!(out, "  '{staging}' play {url} '{{\"do\":\"end_sessions\"}}'")?;
        writeln!(
            out,
            "\nA source that a journalist deletes keeps its items until the purge. Lists can be held in the past:\n"
        )?;
        for command in ["purge", "freeze_lists", "thaw_lists"] {
            writeln!(out, "  '{staging}' play {url} '{{\"do\":\"{command}\"}}'")?;
        }
        writeln!(out, "\nWhat journalists changed, and what was asked: {url}/changes and {url}/requests")?;
    }
    let socks = environment.socks_address();
    writeln!(out, "\n{PROXY_VM} reaches the server through SOCKS at {socks}, as http://{ONION}.")?;
    writeln!(out, "\nLogs and data: {}\nCtrl-C ends it and removes them.", environment.directory().display())?;
    out.flush()
}

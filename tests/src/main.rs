//! The staging environment's command line.

use std::io::{self, Write as _};
use std::net::SocketAddr;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context as _, bail};
use clap::{Parser, Subcommand, ValueEnum};
use staging::bench::BenchError;
use staging::bench::queue::{LEAST_SOURCES, MESSAGES_EACH, QueueOptions};
use staging::clock::Clock;
use staging::generator::{Account, MARLOW, TERNBERG};
use staging::impatient::{self, Patience};
use staging::qrexec::broker::Costs;
use staging::soak::{self, SoakOptions};
use staging::{bench, demo, netns, probe, up};
use uuid::Uuid;

/// Splitdrop without Qubes: for trying it and for testing it
#[derive(Debug, Parser)]
#[command(name = "splitdrop-staging", version, max_term_width = 100)]
struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Show the main job: log in, sync, list; a new source writes, and its message is there and is read, its file too, and
    /// it is answered
    ///
    /// Ends with 0, or with 1 when a step failed.
    #[command(after_help = "Examples:\n  splitdrop-staging demo\n  splitdrop-staging demo --sources 1000 --json")]
    Demo {
        /// How many sources the server has
        #[arg(long, default_value_t = 30, value_parser = clap::value_parser!(u32).range(1..=20_000))]
        sources: u32,
        /// Print one JSON object a step
        #[arg(long)]
        json: bool,
    },
    /// Start everything, print how to use it, and end it at Ctrl-C
    #[command(after_help = "Example:\n  splitdrop-staging up --sources 200 --vm-start 15 --real-calls --delay-ms 300")]
    Up {
        /// How many sources the server has
        #[arg(long, default_value_t = 30, value_parser = clap::value_parser!(u32).range(0..=20_000))]
        sources: u32,
        /// Halt the proxy's VM, and let it take so many seconds to start at the first call; 10 to 40 in life
        #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(0..=600))]
        vm_start: Option<u64>,
        /// Let qrexec calls cost what they do on a real system: 14 ms each, 250 MiB a second
        #[arg(long)]
        real_calls: bool,
        /// Let each exchange with the server take so many milliseconds longer; 300 is common over Tor
        #[arg(long, value_name = "MS", default_value_t = 0, value_parser = clap::value_parser!(u64).range(0..=60_000))]
        delay_ms: u64,
    },
    /// Print what `splitdrop login --credentials-stdin` reads, with the code of this moment
    #[command(after_help = "Example:\n  splitdrop-staging credentials | splitdrop login --credentials-stdin")]
    Credentials {
        /// Which of the two journalists
        #[arg(long, value_enum, default_value_t = Journalist::Marlow)]
        journalist: Journalist,
    },
    /// Measure what the path costs
    Bench {
        #[command(subcommand)]
        what: Bench,
    },
    /// Kill the daemon at random moments while a journalist acts, and see that each act has its effect exactly once
    ///
    /// Ends with 0, or with 1 when something differs; then it says what, and the seed.
    #[command(after_help = "Examples:\n  splitdrop-staging soak --kills 200\n  \
        splitdrop-staging soak --kills 6 --acts 60 --seed 7 --json")]
    Soak {
        /// How often the daemon is killed
        #[arg(long, value_name = "N", default_value_t = 50, value_parser = clap::value_parser!(u32).range(0..=100_000))]
        kills: u32,
        /// How many acts a round has; rounds follow until there were as many kills
        #[arg(long, value_name = "N", default_value_t = 200, value_parser = clap::value_parser!(u32).range(1..=2_000))]
        acts: u32,
        /// What everything random comes from; drawn when not given
        #[arg(long, value_name = "S")]
        seed: Option<u64>,
        /// Print one JSON object
        #[arg(long)]
        json: bool,
    },
    /// Try to reach addresses, and print for each whether that worked
    #[command(after_help = "Example:\n  splitdrop-staging probe 127.0.0.1:9150")]
    Probe {
        /// Addresses with ports
        #[arg(required = true)]
        addresses: Vec<SocketAddr>,
    },
    /// Hold a network namespace: used by the environment itself
    #[command(hide = true)]
    HoldNetns {
        #[arg(long)]
        listen: Option<SocketAddr>,
    },
    /// Serve a qrexec call as the proxy does, with other bounds: used by the environment itself
    #[command(hide = true)]
    ImpatientProxy {
        /// How long to wait for a connection
        #[arg(long)]
        connect_ms: u64,
        /// How long to wait for the first byte of an answer
        #[arg(long)]
        first_byte_ms: u64,
    },
    /// Do something to a running environment's server, as a source or a colleague would
    #[command(
        after_help = "Example:\n  splitdrop-staging play http://127.0.0.1:PORT/control '{\"do\":\"new_source\"}'"
    )]
    Play {
        /// Where `up` says that the server takes commands
        url: String,
        /// The command, in JSON
        command: String,
    },
}

#[derive(Debug, Subcommand)]
enum Bench {
    /// A sync: time, bytes, processor and memory at several sizes; and a call in a warm session against one of its own
    #[command(after_help = "Examples:\n  splitdrop-staging bench sync\n  \
        splitdrop-staging bench sync --sources 10,100 --delay-ms 0 --json")]
    Sync {
        /// Numbers of sources
        #[arg(long, value_delimiter = ',', default_values_t = [10, 100, 1_000, 5_000])]
        sources: Vec<u32>,
        /// Delays of each HTTP exchange, in milliseconds
        #[arg(long, value_delimiter = ',', default_values_t = [0, 300])]
        delay_ms: Vec<u64>,
        /// Print one JSON object
        #[arg(long)]
        json: bool,
    },
    /// The queue: how soon an act shows, how soon a sync brings what is new, what doing nothing costs, and how fast messages
    /// come by themselves
    #[command(after_help = "Examples:\n  splitdrop-staging bench queue\n  \
        splitdrop-staging bench queue --sources 100 --messages 100 --idle-s 20 --json")]
    Queue {
        /// How many sources the inbox has
        #[arg(long, value_name = "N", default_value_t = 1_000, value_parser = clap::value_parser!(u32).range(i64::from(LEAST_SOURCES)..=20_000))]
        sources: u32,
        /// How many messages come by themselves
        #[arg(long, value_name = "N", default_value_t = 1_000, value_parser = clap::value_parser!(u32).range(i64::from(MESSAGES_EACH)..=20_000))]
        messages: u32,
        /// How long to look at what doing nothing costs
        #[arg(long, value_name = "SECONDS", default_value_t = 60, value_parser = clap::value_parser!(u64).range(1..=3_600))]
        idle_s: u64,
        /// Print one JSON object
        #[arg(long)]
        json: bool,
    },
    /// One large file, by the whole path; and by curl, which leaves proxy and client out
    #[command(after_help = "Examples:\n  splitdrop-staging bench files\n  \
        splitdrop-staging bench files --mb 20 --json")]
    Files {
        /// The file's size in millions of bytes. The disk has to hold it three times
        #[arg(long, value_name = "MB", default_value_t = 500, value_parser = clap::value_parser!(u32).range(1..=4_000))]
        mb: u32,
        /// Print one JSON object
        #[arg(long)]
        json: bool,
    },
    /// Decrypting, by each way to the private key: many messages of 2 kB, and one large file
    ///
    /// The way by gpg-agent is measured when this program is built with `--features gpg-agent`.
    #[command(after_help = "Examples:\n  splitdrop-staging bench decrypt\n  \
        splitdrop-staging bench decrypt --messages 50 --mb 20 --json")]
    Decrypt {
        /// How many messages
        #[arg(long, value_name = "N", default_value_t = 1_000, value_parser = clap::value_parser!(u32).range(1..=10_000))]
        messages: u32,
        /// The file's size in millions of bytes. The disk has to hold it four times
        #[arg(long, value_name = "MB", default_value_t = 500, value_parser = clap::value_parser!(u32).range(1..=2_000))]
        mb: u32,
        /// Print one JSON object
        #[arg(long)]
        json: bool,
    },
    /// Search in a store with many messages in mixed scripts: the store alone, as the daemon uses it
    #[command(after_help = "Examples:\n  splitdrop-staging bench search\n  \
        splitdrop-staging bench search --messages 5000 --json")]
    Search {
        /// How many messages
        #[arg(long, value_name = "N", default_value_t = 20_000, value_parser = clap::value_parser!(u32).range(500..=500_000))]
        messages: u32,
        /// Print one JSON object
        #[arg(long)]
        json: bool,
    },
}

impl Bench {
    async fn run(self) -> Result<(), BenchError> {
        match self {
            Self::Sync { sources, delay_ms, json } => bench::sync::run(&sources, &delay_ms, json).await,
            Self::Queue { sources, messages, idle_s, json } => {
                bench::queue::run(QueueOptions { sources, messages, idle: Duration::from_secs(idle_s), json }).await
            }
            Self::Files { mb, json } => bench::files::run(mb, json).await,
            Self::Decrypt { messages, mb, json } => bench::decrypt::run(messages, mb, json).await,
            Self::Search { messages, json } => bench::search::run(messages, json).await,
        }
    }
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum Journalist {
    Marlow,
    Ternberg,
}

impl Journalist {
    fn account(self) -> Account {
        match self {
            Self::Marlow => MARLOW,
            Self::Ternberg => TERNBERG,
        }
    }
}

#[tokio::main]
async fn main() -> ExitCode {
    let Args { command } = Args::parse();
    match run(command).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // Nothing is left to tell it to when standard error is closed.
            let _ = writeln!(io::stderr(), "splitdrop-staging: {error:#}");
            ExitCode::FAILURE
        }
    }
}

async fn run(command: Command) -> anyhow::Result<()> {
    match command {
        Command::Demo { sources, json } => {
            let interrupted = async { tokio::signal::ctrl_c().await };
            tokio::select! {
                done = demo::run(sources, json) => Ok(done?),
                _ = interrupted => bail!("interrupted; everything that was started is ended"),
            }
        }
        Command::Up { sources, vm_start, real_calls, delay_ms } => {
            let pace = up::Pace {
                vm_start: vm_start.map(Duration::from_secs),
                calls: if real_calls { Costs::measured() } else { Costs::default() },
                network: Duration::from_millis(delay_ms),
            };
            Ok(up::run(sources, pace).await?)
        }
        Command::Credentials { journalist } => {
            let account = journalist.account();
            let code = account.code_at(Clock::system().now());
            writeln!(io::stdout(), "{}\n{}\n{code}", account.username, account.passphrase)?;
            Ok(())
        }
        Command::Bench { what } => {
            let interrupted = async { tokio::signal::ctrl_c().await };
            tokio::select! {
                done = what.run() => Ok(done?),
                _ = interrupted => bail!("interrupted; everything that was started is ended"),
            }
        }
        Command::Soak { kills, acts, seed, json } => {
            let seed = seed.unwrap_or_else(|| Uuid::new_v4().as_u64_pair().0);
            let interrupted = async { tokio::signal::ctrl_c().await };
            tokio::select! {
                done = soak::run(SoakOptions { kills, acts, seed, json }) => Ok(done?),
                _ = interrupted => bail!("interrupted, with seed {seed}; everything that was started is ended"),
            }
        }
        Command::Probe { addresses } => {
            for address in addresses {
                writeln!(io::stdout(), "{address} {}", probe::reach(address).await)?;
            }
            Ok(())
        }
        Command::HoldNetns { listen } => Ok(tokio::task::spawn_blocking(move || netns::hold(listen)).await??),
        Command::ImpatientProxy { connect_ms, first_byte_ms } => {
            let (connect, first_byte) = (Duration::from_millis(connect_ms), Duration::from_millis(first_byte_ms));
            impatient::serve(Patience { connect, first_byte }).await
        }
        Command::Play { url, command } => play(&url, command).await,
    }
}

async fn play(url: &str, command: String) -> anyhow::Result<()> {
    // An error only says that there is a provider already.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let client = reqwest::Client::builder().no_proxy().build()?;
    let answer = client
        .post(url)
        .header("content-type", "application/json")
        .body(command)
        .send()
        .await
        .context("could not reach the server: is `splitdrop-staging up` running?")?;
    let ok = answer.status().is_success();
    let text = answer.text().await?;
    writeln!(io::stdout(), "{text}")?;
    if ok { Ok(()) } else { bail!("the server did not take the command") }
}

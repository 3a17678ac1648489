//! The daemon: locks the data directory, opens the store and the control socket, and runs until it is told to end.
//!
//! **Invariant:** one daemon a data directory; a lock that a crash left behind stops nobody.
//!
//! **Invariant:** what it creates is for its user alone: directories 0700, files and the socket 0600.

mod front_end;
mod log;
mod socket;

use std::error::Error;
use std::future::Future;
use std::io::{self, Write as _};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use nix::fcntl::{Flock, FlockArg};
use nix::sys::stat::{Mode, umask};
use protocol::value::ValueError;
use qubes_rpc::qrexec::Qrexec;
use rusqlite::ffi;
use tokio::net::UnixListener;
use tokio::task::{JoinError, JoinSet};
use tokio_util::sync::CancellationToken;

pub use log::LogError;

use crate::clock::Clock;
use crate::confinement::{self, NetworkError};
use crate::download::{Desk, FetchError, sweep};
use crate::engine::{Engine, EngineHandle, EngineParts};
use crate::failure::chain;
use crate::files::Files;
use crate::handover::HandoverDesk;
use crate::openpgp;
use crate::private;
use crate::proxy::Proxy;
use crate::settings::Settings;
use crate::signals::EndSignals;
use crate::store::{Store, StoreError, downloads};

/// What the daemon's one line on standard output begins with, once commands can reach it.
pub const READY: &str = "listening on";

/// How many front ends may be connected at the same time; more wait.
const MAX_FRONT_ENDS: usize = 64;
/// How long front ends may take to get their last answers when the daemon ends.
const FAREWELL: Duration = Duration::from_secs(2);
/// How long work that blocks may take to end once everything else has: what does not hear that it is to stop ends with
/// the process, which leaves nothing that the next start does not repair.
const LAST_WORK: Duration = Duration::from_secs(5);

/// The daemon could not start, or could not go on.
#[derive(Debug, thiserror::Error)]
pub enum DaemonError {
    /// Another daemon has the data directory.
    #[error("another daemon uses {}", .0.display())]
    AlreadyRunning(PathBuf),
    /// Something else listens on the control socket.
    #[error("another daemon listens on {}: end it, or choose another socket with --socket", .0.display())]
    SocketTaken(PathBuf),
    /// At the control socket's path there is something else, or somebody else's.
    #[error("{} is no socket of this user's: choose another path with --socket", .0.display())]
    NoSocket(PathBuf),
    /// The VM is not one to run in.
    #[error(transparent)]
    Network(#[from] NetworkError),
    /// Files and database could not be made to agree.
    #[error("could not check the files")]
    Sweep(#[from] FetchError),
    /// A directory or file could not be made or opened.
    #[error("could not set up {}", .path.display())]
    SetUp {
        /// What.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The log could not be opened.
    #[error(transparent)]
    Log(#[from] LogError),
    /// The disk is full. What was being done then is the source.
    #[error("there is no room for the daemon on the disk of {}: make some, and start it again", .home.display())]
    NoRoom {
        /// The data directory.
        home: PathBuf,
        /// What failed.
        source: Box<Self>,
    },
    /// The store could not be opened.
    #[error("could not open the store")]
    Store(#[from] StoreError),
    /// The way to the private key is not set up.
    #[error(transparent)]
    OpenPgp(#[from] openpgp::SetUpError),
    /// Signals or the runtime could not be set up.
    #[error("could not set up the program")]
    Runtime(#[source] io::Error),
    /// This program's version is none.
    #[error(transparent)]
    Version(#[from] ValueError),
    /// A task that should have gone on ended, by a panic if the log has one.
    #[error("a part of the daemon met a fault and ended: its log says where")]
    TaskEnded,
}

/// Runs the daemon until SIGTERM, SIGINT or SIGHUP, or until a front end ends it.
///
/// # Errors
/// [`DaemonError`].
pub fn run(settings: &Settings) -> Result<(), DaemonError> {
    start(settings).map_err(|error| match wants_room(&error) {
        true => DaemonError::NoRoom { home: settings.home.clone(), source: Box::new(error) },
        false => error,
    })
}

/// Whether something failed since the disk is full.
fn wants_room(error: &(dyn Error + 'static)) -> bool {
    std::iter::successors(Some(error), |error| (*error).source()).any(|error| {
        let io = error.downcast_ref::<io::Error>().map(io::Error::kind);
        let sqlite = error.downcast_ref::<rusqlite::Error>().and_then(rusqlite::Error::sqlite_error);
        // The second is of the file by which connections share the log: SQLite tells only its size.
        let is_full = |error: &ffi::Error| {
            error.code == ffi::ErrorCode::DiskFull || error.extended_code == ffi::SQLITE_IOERR_SHMSIZE
        };
        io == Some(io::ErrorKind::StorageFull) || sqlite.is_some_and(is_full)
    })
}

fn start(settings: &Settings) -> Result<(), DaemonError> {
    if !settings.allow_network {
        confinement::refuse_a_network()?;
    }
    umask(Mode::S_IRWXG | Mode::S_IRWXO);
    let set_up = |path: &PathBuf| {
        let path = path.clone();
        move |source| DaemonError::SetUp { path, source }
    };
    private::directory(&settings.home).map_err(set_up(&settings.home))?;
    log::start(settings.log_file.as_deref())?;
    log::panics();
    let _lock = lock(settings)?;
    private::files_in(&settings.home).map_err(set_up(&settings.home))?;
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().map_err(DaemonError::Runtime)?;
    let store = Store::open(&settings.home)?;
    let files = Files::open(&settings.home).map_err(set_up(&settings.home))?;
    let desk = Desk { store, files, files_without_etag: settings.files_without_etag };
    let ended = runtime.block_on(serve(settings, desk));
    runtime.shutdown_timeout(LAST_WORK);
    ended
}

fn lock(settings: &Settings) -> Result<Flock<std::fs::File>, DaemonError> {
    let path = settings.home.join("lock");
    let file = private::file(&path).map_err(|source| DaemonError::SetUp { path: path.clone(), source })?;
    Flock::lock(file, FlockArg::LockExclusiveNonblock).map_err(|(_, error)| match error {
        nix::errno::Errno::EWOULDBLOCK => DaemonError::AlreadyRunning(settings.home.clone()),
        other => DaemonError::SetUp { path, source: other.into() },
    })
}

async fn serve(settings: &Settings, desk: Desk) -> Result<(), DaemonError> {
    let mut signals = EndSignals::catch().map_err(DaemonError::Runtime)?;
    // The name is removed last.
    let (listener, _name) = socket::listen(&settings.socket).await?;
    let software = control::greeting::own_version()?;
    let qrexec = Qrexec { program: settings.qrexec_client.clone() };
    let proxy = Proxy::new(qrexec, settings.proxy_vm.clone(), software.clone());
    let proxy = proxy.asked_about(settings.dom0_asks.clone());
    let leftover = sweep(&desk).await?;
    let fetch = settings.fetch_messages;
    desk.store.write(move |transaction| downloads::set_fetch_messages(transaction, fetch)).await?;
    let handover = HandoverDesk { store: desk.store.clone(), files: desk.files.clone() };
    let (decryptor, newsroom) = openpgp::open(&settings.openpgp)?;
    let (engine, handle) = Engine::new(EngineParts {
        proxy,
        desk,
        clock: Clock::System,
        software,
        sync: settings.sync,
        acts: settings.acts,
        decryptor,
        newsroom,
        leftover,
        watcher: Arc::new(()),
        handover: settings.handover.clone(),
    })
    .await?;
    let stop = CancellationToken::new();
    let mut main_tasks = JoinSet::new();
    main_tasks.spawn(engine.run(stop.clone()));
    main_tasks.spawn(accept(listener, handle, handover, stop.clone()));
    tracing::info!(version = env!("CARGO_PKG_VERSION"), "daemon ready");
    // For whoever started it and waits; nothing else is ever written to standard output.
    if let Err(error) = writeln!(io::stdout(), "{READY} {}", settings.socket.display()) {
        tracing::debug!(%error, "nobody waits for the daemon");
    }
    let told = stop.clone();
    let end = async move {
        tokio::select! {
            () = signals.any() => {}
            // A front end said so.
            () = told.cancelled() => {}
        }
    };
    supervise(main_tasks, end, stop).await
}

/// Waits for `end`, or for a main task to end, which none does by itself; then ends the others in order.
async fn supervise(
    mut main_tasks: JoinSet<()>,
    end: impl Future<Output = ()>,
    stop: CancellationToken,
) -> Result<(), DaemonError> {
    let panicked = |ended: Result<(), JoinError>| ended.is_err();
    let mut faulty = tokio::select! {
        // Told to end, the others may have ended already.
        biased;
        () = end => false,
        _ = main_tasks.join_next() => true,
    };
    if faulty {
        tracing::error!("a main task ended early");
    }
    tracing::info!("daemon ending");
    stop.cancel();
    while let Some(ended) = main_tasks.join_next().await {
        faulty |= panicked(ended);
    }
    if faulty { Err(DaemonError::TaskEnded) } else { Ok(()) }
}

/// Takes front ends until `stop`.
async fn accept(listener: UnixListener, engine: EngineHandle, desk: HandoverDesk, stop: CancellationToken) {
    let mut front_ends = JoinSet::new();
    loop {
        tokio::select! {
            () = stop.cancelled() => break,
            Some(_) = front_ends.join_next() => {}
            accepted = listener.accept(), if front_ends.len() < MAX_FRONT_ENDS => match accepted {
                Ok((stream, _)) => {
                    front_ends.spawn(front_end::serve(stream, engine.clone(), desk.clone(), stop.clone()));
                }
                Err(error) => {
                    tracing::error!(error = chain(&error), "could not accept a front end");
                    tokio::time::sleep(Duration::from_secs(1)).await;
                }
            },
        }
    }
    let farewell = async { while front_ends.join_next().await.is_some() {} };
    if tokio::time::timeout(FAREWELL, farewell).await.is_err() {
        front_ends.shutdown().await;
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;

    /// A task that ends when it is told to, and says so.
    fn orderly(tasks: &mut JoinSet<()>, stop: &CancellationToken) -> Arc<AtomicBool> {
        let (stop, ended) = (stop.clone(), Arc::new(AtomicBool::new(false)));
        let said = ended.clone();
        tasks.spawn(async move {
            stop.cancelled().await;
            said.store(true, Ordering::SeqCst);
        });
        ended
    }

    #[tokio::test]
    async fn a_main_task_that_ends_early_is_a_fault_and_the_rest_ends_in_order() {
        for panics in [true, false] {
            let (mut tasks, stop) = (JoinSet::new(), CancellationToken::new());
            let ended = orderly(&mut tasks, &stop);
            tasks.spawn(async move { assert!(!panics, "a test's panic") });
            let result = supervise(tasks, std::future::pending(), stop).await;
            assert!(matches!(result, Err(DaemonError::TaskEnded)), "{result:?}");
            assert!(ended.load(Ordering::SeqCst));
        }
    }

    #[tokio::test]
    async fn a_panic_at_the_end_is_a_fault_too() {
        let (mut tasks, stop) = (JoinSet::new(), CancellationToken::new());
        let told = stop.clone();
        tasks.spawn(async move {
            told.cancelled().await;
            panic!("a test's panic");
        });
        let result = supervise(tasks, std::future::ready(()), stop).await;
        assert!(matches!(result, Err(DaemonError::TaskEnded)), "{result:?}");
    }

    #[test]
    fn a_full_disk_is_known_by_whatever_met_it() {
        let sqlite = |code| StoreError::from(rusqlite::Error::SqliteFailure(ffi::Error::new(code), None));
        let io = |kind| DaemonError::SetUp { path: PathBuf::new(), source: io::Error::from(kind) };
        for full in [
            DaemonError::Store(sqlite(ffi::SQLITE_FULL)),
            DaemonError::Store(sqlite(ffi::SQLITE_IOERR_SHMSIZE)),
            DaemonError::Sweep(sqlite(ffi::SQLITE_FULL).into()),
            DaemonError::Sweep(io::Error::from(io::ErrorKind::StorageFull).into()),
            io(io::ErrorKind::StorageFull),
        ] {
            assert!(wants_room(&full), "{full:?}");
        }
        for other in [
            DaemonError::Store(sqlite(ffi::SQLITE_IOERR_READ)),
            DaemonError::Store(sqlite(ffi::SQLITE_CORRUPT)),
            io(io::ErrorKind::PermissionDenied),
            DaemonError::TaskEnded,
        ] {
            assert!(!wants_room(&other), "{other:?}");
        }
    }

    #[tokio::test]
    async fn an_end_that_was_asked_for_is_none() {
        let (mut tasks, stop) = (JoinSet::new(), CancellationToken::new());
        let ended = orderly(&mut tasks, &stop);
        supervise(tasks, std::future::ready(()), stop).await.unwrap();
        assert!(ended.load(Ordering::SeqCst));
    }
}

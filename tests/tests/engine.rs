//! The engine's promises about the order of things, with the real proxy behind it and this test at the gate to the
//! server.
#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test fails by panicking")]

use std::net::SocketAddr;
use std::sync::Arc;

use client_vm::clock::Clock;
use client_vm::engine::{Engine, EngineHandle};
use client_vm::proxy::Proxy;
use client_vm::store::Store;
use control::{Event, SyncOutcome};
use protocol::value::{OneTimeCode, Passphrase, SoftwareVersion, Username};
use qubes_rpc::qrexec::Qrexec;
use staging::environment::{Environment, EnvironmentOptions, ONION, ONION_PORT, PROXY_VM};
use staging::generator::{Account, MARLOW, TERNBERG};
use staging::programs::Programs;
use staging::server::{Command, Server};
use staging::socks::NameTable;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

/// Lets so many connections through to the server as it has permits.
struct Gate {
    address: SocketAddr,
    permits: Arc<Semaphore>,
    _tasks: JoinSet<()>,
}

impl Gate {
    async fn before(server: SocketAddr) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let permits = Arc::new(Semaphore::new(0));
        let (gate, mut tasks) = (Arc::clone(&permits), JoinSet::new());
        tasks.spawn(async move {
            let mut connections = JoinSet::new();
            while let Ok((mut client, _)) = listener.accept().await {
                let gate = Arc::clone(&gate);
                connections.spawn(async move {
                    gate.acquire().await.unwrap().forget();
                    let mut server = TcpStream::connect(server).await.unwrap();
                    let _ = tokio::io::copy_bidirectional(&mut client, &mut server).await;
                });
            }
        });
        Self { address, permits, _tasks: tasks }
    }

    fn open(&self) {
        self.permits.add_permits(1_000);
    }
}

/// An engine in this process, a gate, and everything behind it.
struct Scene {
    environment: Environment,
    /// The server behind the gate.
    server: Server,
    gate: Gate,
    engine: EngineHandle,
    stop: CancellationToken,
    running: JoinSet<()>,
}

impl Scene {
    async fn set() -> Self {
        let programs = tokio::task::spawn_blocking(|| Programs::build(|_| {})).await.unwrap().unwrap();
        let server = Server::start(EnvironmentOptions::with_sources(3, 2).unwrap().server).await.unwrap();
        let gate = Gate::before(server.address()).await;
        let options = EnvironmentOptions::with_sources(0, 0).unwrap();
        let environment = Environment::start(programs, options).await.unwrap();
        // The way to the server leads through the gate.
        let names = NameTable::new().with(ONION, ONION_PORT, gate.address).unwrap();
        environment.socks().set_names(names);
        std::fs::create_dir(environment.home()).unwrap();
        let store = Store::open(&environment.home()).unwrap();
        let version = SoftwareVersion::try_new("0.0.0-test").unwrap();
        let proxy =
            Proxy::new(Qrexec { program: environment.caller().unwrap() }, PROXY_VM.parse().unwrap(), version.clone());
        let (engine, handle) = Engine::new(proxy, store, Clock::System, version).await.unwrap();
        let (stop, mut running) = (CancellationToken::new(), JoinSet::new());
        running.spawn(engine.run(stop.clone()));
        Self { environment, server, gate, engine: handle, stop, running }
    }

    async fn login(&self, account: &Account) {
        let code = account.code_at(self.server.control().clock().now());
        self.engine
            .login(
                Username::try_new(account.username).unwrap(),
                Passphrase::try_new(account.passphrase).unwrap(),
                OneTimeCode::try_new(code).unwrap(),
            )
            .await
            .unwrap();
    }

    async fn end(mut self) {
        self.stop.cancel();
        self.running.join_next().await.unwrap().unwrap();
        self.environment.stop().await.unwrap();
        self.server.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_during_a_sync_cause_exactly_one_more() {
    let scene = Scene::set().await;
    // One connection for the login; the sync's wait.
    scene.gate.permits.add_permits(1);
    let mut events = scene.engine.subscribe();
    scene.login(&MARLOW).await;
    while !matches!(events.recv().await.unwrap(), Event::SyncStarted(_)) {}

    // The engine obeys in order: when it has said how it is, it has taken the refreshes before.
    let refreshes = async {
        tokio::join!(
            scene.engine.refresh(),
            scene.engine.refresh(),
            scene.engine.refresh(),
            scene.engine.refresh(),
            async {
                let status = scene.engine.status().await.unwrap();
                assert!(status.running_sync.is_some());
                scene.gate.open();
            }
        )
    };
    let (a, b, c, d, ()) = refreshes.await;
    let reports = [a.unwrap(), b.unwrap(), c.unwrap(), d.unwrap()];
    assert!(reports.iter().all(|report| *report == reports[0]), "all wait for the same one");

    let mut kinds = Vec::new();
    while kinds.iter().filter(|kind| **kind == "ended").count() < 2 {
        match events.recv().await.unwrap() {
            Event::SyncStarted(_) => kinds.push("started"),
            Event::SyncEnded(_) => kinds.push("ended"),
            _other => {}
        }
    }
    assert_eq!(kinds, ["ended", "started", "ended"]);
    // A sync that nobody asked for would have started before the answers: none has.
    assert!(scene.engine.status().await.unwrap().running_sync.is_none());
    assert_eq!(scene.server.control().count("GET", "/api/v1/users"), 2);
    scene.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_that_follows_another_is_not_disturbed_by_its_sync() {
    let scene = Scene::set().await;
    scene.gate.permits.add_permits(1);
    let mut events = scene.engine.subscribe();
    scene.login(&MARLOW).await;
    while !matches!(events.recv().await.unwrap(), Event::SyncStarted(_)) {}
    // The first journalist leaves while the sync waits at the gate, and the second signs in.
    let (logout, ()) = tokio::join!(scene.engine.logout(), async {
        scene.gate.permits.add_permits(2);
    });
    logout.unwrap();
    scene.server.control().apply(Command::EndSessions { journalist: Some("marlow".to_owned()) }).unwrap();
    scene.gate.open();
    scene.login(&TERNBERG).await;
    let report = scene.engine.refresh().await.unwrap();
    assert!(matches!(report.outcome, SyncOutcome::Ok | SyncOutcome::Unchanged));
    let status = scene.engine.status().await.unwrap();
    assert!(
        matches!(status.session, control::Session::SignedIn { ref username, .. } if username.as_str() == "ternberg")
    );
    scene.end().await;
}

//! The engine's promises about the order of things, with the real proxy behind it and this test at the gate to the
//! server.
#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test fails by panicking")]

use std::sync::Arc;

use client_vm::clock::Clock;
use client_vm::download::Desk;
use client_vm::engine::{Engine, EngineHandle, EngineParts};
use client_vm::erasure::Leftover;
use client_vm::files::Files;
use client_vm::newsroom::Newsroom;
use client_vm::openpgp::decrypt::{Decryptor, KeyFile};
use client_vm::proxy::Proxy;
use client_vm::settings::{ActSettings, HandoverSettings, SyncSettings};
use client_vm::store::{Store, downloads};
use control::Event;
use protocol::value::{OneTimeCode, Passphrase, SoftwareVersion, Username};
use qubes_rpc::qrexec::Qrexec;
use staging::environment::{Environment, EnvironmentOptions, ONION, ONION_PORT, PROXY_VM};
use staging::gate::Gate;
use staging::generator::{Account, MARLOW};
use staging::programs::Programs;
use staging::server::Server;
use staging::socks::NameTable;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

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
        let gate = Gate::before(server.address()).await.unwrap();
        let options = EnvironmentOptions::with_sources(0, 0).unwrap();
        let environment = Environment::start(programs, options).await.unwrap();
        // The way to the server leads through the gate.
        let names = NameTable::new().with(ONION, ONION_PORT, gate.address()).unwrap();
        environment.socks().set_names(names);
        std::fs::create_dir(environment.home()).unwrap();
        let (store, files) = (Store::open(&environment.home()).unwrap(), Files::open(&environment.home()).unwrap());
        store.write(|transaction| downloads::set_fetch_messages(transaction, false)).await.unwrap();
        let version = SoftwareVersion::try_new("0.0.0-test").unwrap();
        let proxy =
            Proxy::new(Qrexec { program: environment.caller().unwrap() }, PROXY_VM.parse().unwrap(), version.clone());
        let decryptor: Arc<dyn Decryptor> = Arc::new(KeyFile::new(environment.key_file()));
        let parts = EngineParts {
            proxy,
            desk: Desk { store, files, files_without_etag: false },
            clock: Clock::System,
            software: version,
            sync: SyncSettings::default(),
            acts: ActSettings::default(),
            newsroom: Newsroom::new(None, None, Arc::clone(&decryptor)),
            decryptor,
            leftover: Leftover::default(),
            watcher: Arc::new(()),
            handover: HandoverSettings {
                open_in_vm: environment.directory().join("no-program"),
                viewer_vm: "@dispvm".parse().unwrap(),
                device_vm: "sd-devices".parse().unwrap(),
                printer_vm: "sd-devices".parse().unwrap(),
            },
        };
        let (engine, handle) = Engine::new(parts).await.unwrap();
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
    scene.gate.admit(1);
    let mut events = scene.engine.subscribe().unwrap();
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

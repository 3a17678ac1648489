//! One call: the request, the decision, the service, the end.

use std::collections::BTreeMap;
use std::os::fd::AsFd as _;
use std::sync::Arc;

use tokio::io::{AsyncReadExt, AsyncWriteExt, Interest};
use tokio::net::UnixStream;
use tokio_util::sync::CancellationToken;

use super::House;
use super::admission::{Admitted, NotAdmitted, admit};
use super::installation::{Found, LookUpError};
use super::record::{CallId, EventKind};
use super::service::{Service, ServiceSpec, StartError};
use super::socket_service::SocketService;
use crate::qrexec::descriptors::CallerEnds;
use crate::qrexec::policy::{Call, ServiceTarget};
use crate::qrexec::request::{self, Request, RequestError};
use crate::qrexec::system::QubeName;
use crate::qrexec::{Ending, descriptors};

/// What ends a running call from outside.
#[derive(Debug)]
struct Lives {
    /// The broker stops.
    stop: CancellationToken,
    /// The caller's VM, or its agent, ends.
    source: CancellationToken,
}

/// Answers the call of `source` on this connection. When `stop` comes the service is ended.
pub(super) async fn answer(mut connection: UnixStream, source: QubeName, house: Arc<House>, stop: CancellationToken) {
    let lives = Lives { stop, source: house.vms.life(source.as_str()) };
    // Closing the connection is the refusal, here and below: for a caller without an answer, the death of its agent
    // looks the same.
    let request = tokio::select! {
        () = lives.stop.cancelled() => return,
        () = lives.source.cancelled() => return,
        request = request::receive(&mut connection) => request,
    };
    match request {
        Ok(request) => serve(connection, source, request, &house, &lives).await,
        Err(error @ RequestError::TooLong) => {
            tracing::warn!(%source, %error, "a caller has killed its VM's agent");
            house.record.open(EventKind::AgentKilled { vm: source.clone() }, None);
            // There is such a VM: it has just called.
            let _ = house.vms.kill_agent(source.as_str());
        }
        Err(error) => tracing::warn!(%source, %error, "a caller did not ask properly"),
    }
}

async fn serve(mut connection: UnixStream, source: QubeName, request: Request, house: &House, lives: &Lives) {
    let record = &house.record;
    let Request { target, service, argument } = request;
    let requested = EventKind::Requested {
        source: source.clone(),
        target: target.clone(),
        service: service.clone(),
        argument: argument.clone(),
    };
    // Where no descriptor is left the call is counted until its end is heard of.
    let call = record.open(requested, connection.as_fd().try_clone_to_owned().ok());
    let wanted = Call { service, argument, source, target };
    let admitted = tokio::select! {
        () = lives.stop.cancelled() => return record.forget(call),
        () = lives.source.cancelled() => return record.note(call, EventKind::Withdrawn),
        admitted = admit(&mut connection, call, &wanted, house) => admitted,
    };
    let ending = match admitted {
        Ok(admitted) => run(&mut connection, call, &wanted, admitted, house, lives).await,
        Err(NotAdmitted::Failed) => Ending::Failed,
        Err(NotAdmitted::Refused(by)) => return record.note(call, EventKind::Refused(by)),
        Err(NotAdmitted::Withdrawn) => return record.note(call, EventKind::Withdrawn),
    };
    record.note(call, EventKind::Ended(ending));
    if ending != Ending::Lost {
        // The caller may be gone; the call is over in any case.
        let _ = connection.write_all(&[descriptors::ENDED, ending.exit_code()]).await;
    }
}

/// What serves a call.
#[derive(Debug)]
enum Server {
    Program(Box<Service>),
    Socket(SocketService),
}

/// Runs the service of an allowed call to its end.
async fn run(
    connection: &mut UnixStream,
    call: CallId,
    wanted: &Call,
    admitted: Admitted<'_>,
    house: &House,
    lives: &Lives,
) -> Ending {
    let Admitted { target, user, config, entered: _entered } = admitted;
    let vm = vm_of(&target);
    let target_life = match &target {
        ServiceTarget::Qube(name) => house.vms.life(name.as_str()),
        ServiceTarget::AdminVm | ServiceTarget::NewDisposable(_) => CancellationToken::new(),
    };
    let full_name = wanted.full_name();
    let installation = house.installation(&target);
    let started = match installation.find(&full_name, &wanted.service) {
        Ok(Found::Program(program)) => {
            let environment = environment(&target, house);
            let spec = ServiceSpec {
                program: &program,
                environment: &environment,
                source: &wanted.source,
                full_name: &full_name,
                argument: &wanted.argument,
                user: user.as_deref(),
            };
            Service::start(&spec).map(|(service, ends)| (Server::Program(Box::new(service)), ends))
        }
        Ok(Found::Socket(path)) => {
            let started = SocketService::start(&path, &full_name, &wanted.source, &config).await;
            started.map(|(service, ends)| (Server::Socket(service), ends)).map_err(StartError::Streams)
        }
        Err(LookUpError::Missing) => return Ending::Missing,
        Err(error @ LookUpError::Unreadable(_)) => {
            tracing::warn!(vm, service = %full_name, %error, "a service cannot be looked for");
            return Ending::Failed;
        }
    };
    let (mut server, ends) = match started {
        Ok(started) => started,
        Err(error) => {
            tracing::warn!(vm, service = %full_name, %error, "a service could not be started");
            return match error {
                StartError::NoProgram(_) => Ending::Missing,
                StartError::Program(_) | StartError::Streams(_) => Ending::Failed,
            };
        }
    };
    house.record.note(call, EventKind::Started { target: target.clone(), user, pid: server.pid() });
    let mut listening = hand_over(connection, ends, house).await;
    if !listening {
        house.record.note(call, EventKind::CallerGone);
        server.stdout_ended();
    }
    let mut byte = [0];
    let ended = loop {
        tokio::select! {
            // In this order, so that a service which ends because its caller is gone has that in the log before.
            biased;
            said = connection.read(&mut byte), if listening => {
                server.stdout_ended();
                if !matches!((said, byte), (Ok(1..), [descriptors::STDOUT_ENDED])) {
                    listening = false;
                    house.record.note(call, EventKind::CallerGone);
                }
            }
            ended = server.ended(|bytes| house.record.log(vm, bytes)) => break Some(ended),
            () = lives.stop.cancelled() => break None,
            () = lives.source.cancelled() => break None,
            () = target_life.cancelled() => break None,
        }
    };
    match ended {
        Some(Ok(ending)) => return ending,
        Some(Err(error)) => tracing::warn!(vm, service = %full_name, %error, "a service was lost"),
        None => {}
    }
    if let Server::Program(service) = &mut server {
        service.stop(house.grace, |bytes| house.record.log(vm, bytes)).await;
    }
    Ending::Lost
}

/// Gives the caller its ends, and the bound of the rate at which it moves bytes. Whether it is still there to get them.
async fn hand_over(connection: &UnixStream, ends: CallerEnds, house: &House) -> bool {
    let rate = house.costs().bytes_per_second;
    let send = || descriptors::send_started(connection, &ends, rate);
    // The ends go away here: only the caller holds them then, and when it dies the service's streams are closed.
    connection.async_io(Interest::WRITABLE, send).await.is_ok()
}

impl Server {
    fn pid(&self) -> Option<u32> {
        match self {
            Self::Program(service) => service.pid(),
            Self::Socket(_) => None,
        }
    }

    fn stdout_ended(&mut self) {
        match self {
            Self::Program(service) => service.stdout_ended(),
            // The broker copies, and so sees it itself.
            Self::Socket(_) => {}
        }
    }

    /// Waits for its end. Cancel-safe: called again it goes on where it was.
    async fn ended(&mut self, log: impl FnMut(&[u8])) -> std::io::Result<Ending> {
        match self {
            Self::Program(service) => service.ended(log).await,
            Self::Socket(service) => {
                service.ended().await;
                Ok(Ending::Exited(0))
            }
        }
    }
}

/// The VM whose installation serves the target, by name.
pub(super) fn vm_of(target: &ServiceTarget) -> &str {
    match target {
        ServiceTarget::AdminVm => "dom0",
        ServiceTarget::Qube(name) | ServiceTarget::NewDisposable(name) => name.as_str(),
    }
}

/// The environment of a VM's services: its settings, and over them what the installation says.
fn environment(target: &ServiceTarget, house: &House) -> BTreeMap<String, String> {
    let usable = |name: &str| !name.is_empty() && !name.contains(['=', '\0']);
    let mut environment: BTreeMap<String, String> = house.vms.with_system(|system| {
        let settings = system.qube(vm_of(target)).into_iter().flat_map(|qube| qube.settings());
        settings.filter(|(name, _)| usable(name)).map(|(name, value)| (name.to_owned(), value.to_owned())).collect()
    });
    environment.extend(house.installation(target).environment.clone());
    environment
}

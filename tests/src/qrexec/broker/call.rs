//! One call: the request, the decision, the service, the end.

use std::sync::Arc;

use tokio::io::{AsyncReadExt, AsyncWriteExt, Interest};
use tokio::net::UnixStream;
use tokio_util::sync::CancellationToken;

use super::record::{CallId, EventKind, RefusedBy};
use super::service::{Service, ServiceSpec, StartError};
use super::{House, Installation};
use crate::qrexec::policy::{Call, Decision, ServiceTarget};
use crate::qrexec::request::{self, Request};
use crate::qrexec::system::QubeName;
use crate::qrexec::{Ending, descriptors};

/// Answers the call of `source` on this connection. When `stop` comes the service is ended.
pub(super) async fn answer(mut connection: UnixStream, source: QubeName, house: Arc<House>, stop: CancellationToken) {
    let request = tokio::select! {
        () = stop.cancelled() => return,
        request = request::receive(&mut connection) => request,
    };
    // Closing the connection is the refusal, here and below.
    match request {
        Ok(request) => decide(connection, source, request, &house, &stop).await,
        Err(error) => tracing::warn!(%source, %error, "a caller did not ask properly"),
    }
}

async fn decide(
    mut connection: UnixStream,
    source: QubeName,
    request: Request,
    house: &House,
    stop: &CancellationToken,
) {
    let record = &house.record;
    let Request { target, service, argument } = request;
    let call = record.open(EventKind::Requested {
        source: source.clone(),
        target: target.clone(),
        service: service.clone(),
        argument: argument.clone(),
    });
    let wanted = Call { service, argument, source, target };
    let decision = match &house.policy {
        Ok(policy) => policy.evaluate(&wanted, &house.system),
        Err(error) => return record.note(call, EventKind::Refused(RefusedBy::BrokenPolicy(error.clone()))),
    };
    let target = match decision {
        Decision::Allow { target, .. } => target,
        Decision::Ask { .. } => return record.note(call, EventKind::Refused(RefusedBy::NobodyToAsk)),
        Decision::Deny { reason, .. } => return record.note(call, EventKind::Refused(RefusedBy::Policy(reason))),
    };
    let ending = run(&mut connection, call, &wanted, target, house, stop).await;
    record.note(call, EventKind::Ended(ending));
    if ending != Ending::Lost {
        // The caller may be gone; the call is over in any case.
        let _ = connection.write_all(&[descriptors::ENDED, ending.exit_code()]).await;
    }
}

/// Runs the service of an allowed call to its end.
async fn run(
    connection: &mut UnixStream,
    call: CallId,
    wanted: &Call,
    target: ServiceTarget,
    house: &House,
    stop: &CancellationToken,
) -> Ending {
    let vm = match &target {
        ServiceTarget::AdminVm => "dom0",
        ServiceTarget::Qube(name) | ServiceTarget::NewDisposable(name) => name.as_str(),
    };
    let full_name = format!("{}+{}", wanted.service, wanted.argument);
    let Some(spec) = house.installed.get(vm).and_then(|installation| look_up(installation, wanted, &full_name)) else {
        return Ending::Missing;
    };
    let (mut service, ends) = match Service::start(&spec) {
        Ok(started) => started,
        Err(error) => {
            tracing::warn!(vm, service = %full_name, %error, "a service could not be started");
            return match error {
                StartError::NoProgram(_) => Ending::Missing,
                StartError::Program(_) | StartError::Streams(_) => Ending::Failed,
            };
        }
    };
    house.record.note(call, EventKind::Started { target: target.clone(), pid: service.pid() });
    let sent = connection.async_io(Interest::WRITABLE, || descriptors::send_started(&*connection, &ends)).await;
    // From here on only the caller holds them: when it dies the service's streams are closed.
    drop(ends);

    let mut listening = sent.is_ok();
    if !listening {
        house.record.note(call, EventKind::CallerGone);
    }
    let mut byte = [0];
    let ended = loop {
        tokio::select! {
            // In this order, so that a service which ends because its caller is gone has that in the log before.
            biased;
            // Callers say nothing after their request.
            _ = connection.read(&mut byte), if listening => {
                listening = false;
                house.record.note(call, EventKind::CallerGone);
            }
            ended = service.ended(|bytes| house.record.log(vm, bytes)) => break Some(ended),
            () = stop.cancelled() => break None,
        }
    };
    match ended {
        Some(Ok(ending)) => return ending,
        Some(Err(error)) => tracing::warn!(vm, service = %full_name, %error, "a service was lost"),
        None => {}
    }
    service.stop(house.grace, |bytes| house.record.log(vm, bytes)).await;
    Ending::Lost
}

/// Finds the program as the target's agent does: with the argument first, then without.
fn look_up<'h>(installation: &'h Installation, wanted: &'h Call, full_name: &'h str) -> Option<ServiceSpec<'h>> {
    let services = &installation.services;
    let program = services.get(full_name).or_else(|| services.get(&wanted.service))?;
    Some(ServiceSpec {
        program,
        environment: &installation.environment,
        source: &wanted.source,
        full_name,
        argument: &wanted.argument,
    })
}

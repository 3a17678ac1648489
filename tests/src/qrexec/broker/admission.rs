//! The way of a call from its request to the point at which its service may be started: the policy, dom0's user, the
//! target's start.
//!
//! **Invariant:** nothing is started for a call that is not allowed.

use tokio::io::AsyncReadExt;
use tokio::net::UnixStream;

use super::House;
use super::questions::{NotPut, Question};
use super::record::{CallId, EventKind, RefusedBy};
use super::vms::{Entered, NotStarted};
use crate::qrexec::policy::{Call, Decision, ServiceTarget};
use crate::qrexec::rpc_config::RpcConfig;
use crate::qrexec::system::Power;

/// A call whose service may be started.
#[derive(Debug)]
pub(super) struct Admitted<'h> {
    pub(super) target: ServiceTarget,
    /// The user that runs the service, unless the default one.
    pub(super) user: Option<String>,
    pub(super) config: RpcConfig,
    /// The call is on its VMs' books as long as this lives.
    pub(super) entered: Entered<'h>,
}

/// A call whose service is not started.
#[derive(Debug)]
pub(super) enum NotAdmitted {
    Refused(RefusedBy),
    /// Allowed, and something else is in the way.
    Failed,
    /// The caller is gone.
    Withdrawn,
}

/// What the policy, or the user that it asked, allows.
struct Allowed {
    target: ServiceTarget,
    user: Option<String>,
    autostart: bool,
}

/// Brings a call to its target's door. Reads from the connection only to notice that the caller is gone.
pub(super) async fn admit<'h>(
    connection: &mut UnixStream,
    call: CallId,
    wanted: &Call,
    house: &'h House,
) -> Result<Admitted<'h>, NotAdmitted> {
    let admitted = open_door(connection, call, wanted, house).await;
    match &admitted {
        Ok(_) => tokio::time::sleep(house.costs().call).await,
        Err(NotAdmitted::Refused(_)) => tokio::time::sleep(house.costs().refused).await,
        Err(NotAdmitted::Failed | NotAdmitted::Withdrawn) => {}
    }
    admitted
}

async fn open_door<'h>(
    connection: &mut UnixStream,
    call: CallId,
    wanted: &Call,
    house: &'h House,
) -> Result<Admitted<'h>, NotAdmitted> {
    let record = &house.record;
    let Allowed { target, user, autostart } = decide(connection, call, wanted, house).await?;
    if house.take_hang() {
        record.note(call, EventKind::Hung);
        gone(connection).await;
        return Err(NotAdmitted::Withdrawn);
    }
    let Some(entered) = house.vms.enter(&wanted.source, &target, house.most_calls) else {
        record.note(call, EventKind::TooMany);
        return Err(NotAdmitted::Failed);
    };
    let not_started = |NotStarted| NotAdmitted::Refused(RefusedBy::NotStarted);
    if !autostart && halted(&target, house) {
        return Err(not_started(NotStarted));
    }
    house.vms.ensure(&target, || record.note(call, EventKind::WaitsForStart)).await.map_err(not_started)?;
    let config = match house.installation(&target).config(&wanted.full_name(), &wanted.service) {
        Ok(config) => config,
        Err(error) => {
            tracing::warn!(service = %wanted.service, %error, "a service's configuration cannot be read");
            return Err(NotAdmitted::Failed);
        }
    };
    if config.wait_for_session {
        house.vms.session(&target).await;
    }
    let user = config.force_user.clone().or(user);
    Ok(Admitted { target, user, config, entered })
}

/// Asks the policy, and whoever the policy asks.
async fn decide(
    connection: &mut UnixStream,
    call: CallId,
    wanted: &Call,
    house: &House,
) -> Result<Allowed, NotAdmitted> {
    let refused = |by| Err(NotAdmitted::Refused(by));
    let note = |kind| house.record.note(call, kind);
    let tell = |notify, allowed| {
        if notify {
            note(EventKind::Notified { allowed });
        }
    };
    let policy = match &house.policy {
        Ok(policy) => policy,
        Err(error) => return refused(RefusedBy::BrokenPolicy(error.clone())),
    };
    match house.vms.with_system(|system| policy.evaluate(wanted, system)) {
        Decision::Allow { target, user, notify, autostart } => {
            tell(notify, true);
            Ok(Allowed { target, user, autostart })
        }
        Decision::Deny { notify, reason } => {
            tell(notify, false);
            refused(RefusedBy::Policy(reason))
        }
        Decision::Ask { targets, default_target, user, notify, autostart } => {
            let Call { service, argument, source, target } = wanted.clone();
            let question = Question { call, source, service, argument, target, targets, default_target };
            note(EventKind::Asked(question.clone()));
            let mut asked = match house.questions.put(question) {
                Ok(asked) => asked,
                Err(NotPut::Nobody) => return refused(RefusedBy::NobodyToAsk),
                Err(NotPut::TooMany) => return refused(RefusedBy::TooManyQuestions),
            };
            let chosen = tokio::select! {
                biased;
                chosen = asked.answer() => chosen,
                () = gone(connection) => return Err(NotAdmitted::Withdrawn),
            };
            note(EventKind::Answered(chosen.clone()));
            tell(notify, chosen.is_some());
            match chosen {
                Some(target) => Ok(Allowed { target, user, autostart }),
                None => refused(RefusedBy::User),
            }
        }
    }
}

fn halted(target: &ServiceTarget, house: &House) -> bool {
    match target {
        ServiceTarget::AdminVm | ServiceTarget::NewDisposable(_) => false,
        ServiceTarget::Qube(name) => house.vms.power(name.as_str()) == Some(Power::Halted),
    }
}

/// Waits until the caller is gone. Callers say nothing after their request; what they say is passed over.
async fn gone(connection: &mut UnixStream) {
    let mut byte = [0];
    while matches!(connection.read(&mut byte).await, Ok(1..)) {}
}

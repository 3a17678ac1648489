//! What a front end is told when something failed: what happened, and what to do.

use control::{Failure, FailureKind};
use protocol::{ErrorKind, Stage};
use qubes_rpc::connection::{CallFailure, HelloError};
use qubes_rpc::qrexec::OpenError;

use crate::download::FetchError;
use crate::handover::HandoverError;
use crate::proxy::ProxyError;
use crate::store::StoreError;
use crate::store::outbox::{DealError, EnqueueError, UndoError};
use crate::sync::SyncFailure;

pub(crate) fn failure(kind: FailureKind, message: impl Into<String>) -> Failure {
    Failure { kind, message: message.into() }
}

pub(crate) fn not_signed_in() -> Failure {
    failure(FailureKind::NotSignedIn, "nobody is signed in: run `splitdrop login`")
}

/// An error with its causes, in one line.
pub(crate) fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let more = error.to_string();
        // Transparent errors repeat their cause.
        if !text.ends_with(&more) {
            text.push_str(": ");
            text.push_str(&more);
        }
        cause = error.source();
    }
    text
}

pub(crate) fn of_store(error: &StoreError) -> Failure {
    failure(FailureKind::Store, format!("{}; is the disk full? The daemon's log has more", chain(error)))
}

pub(crate) fn of_enqueue(error: &EnqueueError) -> Failure {
    match error {
        EnqueueError::NoSource(_) | EnqueueError::NoItem(_) => failure(FailureKind::NotFound, chain(error)),
        EnqueueError::BeingDeleted(_)
        | EnqueueError::Gone(_)
        | EnqueueError::Objects
        | EnqueueError::NoKey(_)
        | EnqueueError::KeyHeld { .. } => failure(FailureKind::Conflict, chain(error)),
        EnqueueError::Store(error) => of_store(error),
    }
}

pub(crate) fn of_deal(error: &DealError) -> Failure {
    match error {
        DealError::NoAct(_) => failure(FailureKind::NotFound, chain(error)),
        DealError::NotSo { .. } | DealError::DraftFull(_) => failure(FailureKind::Conflict, chain(error)),
        DealError::Store(error) => of_store(error),
    }
}

pub(crate) fn of_undo(error: &UndoError) -> Failure {
    match error {
        UndoError::NoAct(_) => failure(FailureKind::NotFound, chain(error)),
        UndoError::Nothing | UndoError::NoDeletion(_) | UndoError::Sent(_) | UndoError::Refused(_) => {
            failure(FailureKind::Conflict, chain(error))
        }
        UndoError::Store(error) => of_store(error),
    }
}

pub(crate) fn of_login(error: &ProxyError) -> Failure {
    match error {
        ProxyError::Call(failed) if failed.kind() == ErrorKind::Unauthorized => failure(
            FailureKind::LoginRefused,
            "the server did not accept the name, the passphrase or the code; wait for the next code, since each works once",
        ),
        ProxyError::Call(failed) if failed.before_the_server() => {
            let told = of_call("login", failed);
            failure(told.kind, format!("{}; the code was not used", told.message))
        }
        ProxyError::Call(failed) => {
            let told = of_call("login", failed);
            failure(told.kind, format!("{}; wait for the next code before you try again", told.message))
        }
        ProxyError::Open(_) | ProxyError::Name(_) | ProxyError::GivenUp => {
            let told = of_proxy(error);
            failure(told.kind, format!("{}; the code was not used", told.message))
        }
    }
}

pub(crate) fn of_proxy(error: &ProxyError) -> Failure {
    match error {
        ProxyError::Open(open) => of_open(open),
        ProxyError::Call(call) => of_call("the call", call),
        ProxyError::Name(name) => failure(FailureKind::Internal, chain(name)),
        ProxyError::GivenUp => failure(FailureKind::Cancelled, chain(error)),
    }
}

fn of_open(error: &OpenError) -> Failure {
    let text = chain(error);
    match error {
        OpenError::Refused { .. } => failure(FailureKind::PolicyRefused, text),
        OpenError::NotStarted { .. } => failure(
            FailureKind::Unreachable,
            format!("{text}: outside Qubes set `qrexec_client` in the configuration, or SPLITDROP_QREXEC"),
        ),
        OpenError::Hello { source: HelloError::Refused(_), vm } => failure(
            FailureKind::ServerFault,
            format!("{text}: set it in dom0 with `qvm-features {vm} vm-config.NAME VALUE`"),
        ),
        OpenError::Hello { source: HelloError::TimedOut, .. }
        | OpenError::NoSuchService { .. }
        | OpenError::QrexecFailed { .. }
        | OpenError::Died { .. } => failure(FailureKind::Unreachable, text),
        OpenError::Hello { .. } => failure(FailureKind::ServerFault, text),
    }
}

fn of_call(name: &str, error: &CallFailure) -> Failure {
    let text = format!("{name}: {}", chain(error));
    match error.kind() {
        ErrorKind::Unauthorized => {
            failure(FailureKind::NotSignedIn, "the server no longer accepts the session: run `splitdrop login`")
        }
        ErrorKind::Unreachable | ErrorKind::Timeout => {
            let hint = match error {
                CallFailure::Failed(failed) => stage_hint(failed.stage),
                CallFailure::Incomplete(_)
                | CallFailure::NotSent(_)
                | CallFailure::Silent
                | CallFailure::Deadline(_) => "",
            };
            failure(FailureKind::Unreachable, format!("{text}{hint}"))
        }
        ErrorKind::Cancelled => failure(FailureKind::Cancelled, text),
        ErrorKind::NotFound
        | ErrorKind::Conflict
        | ErrorKind::Refused
        | ErrorKind::RateLimited
        | ErrorKind::Server
        | ErrorKind::BadResponse
        | ErrorKind::OutOfScope
        | ErrorKind::TooLarge
        | ErrorKind::Internal => failure(FailureKind::ServerFault, text),
    }
}

fn stage_hint(stage: Stage) -> &'static str {
    match stage {
        Stage::Socks => "; Tor does not answer in the proxy VM: is it running there, where SD_PROXY_SOCKS says?",
        Stage::Route => "; Tor runs and finds no way to the server: is the server up, and its address right?",
        Stage::Connect => "; the server does not take connections",
        Stage::FirstByte | Stage::Body => "; the server took the connection and does not answer",
        Stage::Admission | Stage::Parse => "",
    }
}

pub(crate) fn of_fetch(error: &FetchError) -> Failure {
    let kind = match error {
        // The proxy is gone, or does not keep its word; the server has said nothing.
        FetchError::Call(CallFailure::Incomplete(_) | CallFailure::NotSent(_) | CallFailure::Silent) => {
            FailureKind::Unreachable
        }
        FetchError::Call(failed @ (CallFailure::Failed(_) | CallFailure::Deadline(_))) => of_call("", failed).kind,
        FetchError::Silent | FetchError::Unfinished => FailureKind::Unreachable,
        FetchError::Mismatch
        | FetchError::Mismatches
        | FetchError::NoClaim
        | FetchError::Misplaced
        | FetchError::TooLong => FailureKind::ServerFault,
        FetchError::NoRoom | FetchError::Io(_) | FetchError::Store(_) => FailureKind::Store,
        FetchError::Cancelled => FailureKind::Cancelled,
    };
    failure(kind, error.reason())
}

pub(crate) fn of_handover(error: &HandoverError) -> Failure {
    let kind = match error {
        HandoverError::NoItem => FailureKind::NotFound,
        HandoverError::BeingDeleted(_) | HandoverError::NotDecrypted(_) => FailureKind::Conflict,
        HandoverError::Store(error) => return of_store(error),
        HandoverError::Vanished(_) | HandoverError::Io(_) => FailureKind::Store,
        HandoverError::NotStarted { .. } => FailureKind::Unreachable,
        HandoverError::Refused { .. } => FailureKind::PolicyRefused,
        HandoverError::Failed { .. } | HandoverError::NoStatus { .. } | HandoverError::UnknownStatus { .. } => {
            FailureKind::OtherVm
        }
        HandoverError::GivenUp => FailureKind::Cancelled,
    };
    failure(kind, chain(error))
}

pub(crate) fn of_sync(error: &SyncFailure) -> Failure {
    match error {
        SyncFailure::Call { call, failure } => of_call(call, failure),
        SyncFailure::Snapshot(error) => failure(FailureKind::ServerFault, chain(error)),
        SyncFailure::Store(error) => of_store(error),
        SyncFailure::Cancelled => failure(FailureKind::Cancelled, chain(error)),
    }
}

#[cfg(test)]
mod tests {
    use protocol::{CallError, Retry};
    use qubes_rpc::connection::Break;

    use super::*;

    fn login_error(kind: ErrorKind, stage: Stage) -> Failure {
        of_login(&ProxyError::Call(CallError::new(kind, stage, Retry::WhenUserActs).into()))
    }

    #[test]
    fn a_login_says_whether_its_code_was_used() {
        let refused = login_error(ErrorKind::Unauthorized, Stage::FirstByte);
        assert_eq!(refused.kind, FailureKind::LoginRefused);
        let before = login_error(ErrorKind::Unreachable, Stage::Socks);
        assert!(before.message.ends_with("the code was not used"), "{}", before.message);
        let after = login_error(ErrorKind::Timeout, Stage::FirstByte);
        assert!(after.message.contains("wait for the next code"), "{}", after.message);
    }

    #[test]
    fn a_download_that_failed_says_whose_fault_it_was() {
        let failed = |kind| FetchError::Call(CallError::new(kind, Stage::FirstByte, Retry::Now).into());
        for (error, kind) in [
            (failed(ErrorKind::Unauthorized), FailureKind::NotSignedIn),
            (failed(ErrorKind::Unreachable), FailureKind::Unreachable),
            (failed(ErrorKind::NotFound), FailureKind::ServerFault),
            (FetchError::Call(CallFailure::Incomplete(Break::Ended)), FailureKind::Unreachable),
            (FetchError::Call(CallFailure::Silent), FailureKind::Unreachable),
            (FetchError::Mismatches, FailureKind::ServerFault),
            (FetchError::NoRoom, FailureKind::Store),
            (FetchError::Io(std::io::ErrorKind::StorageFull.into()), FailureKind::Store),
        ] {
            let told = of_fetch(&error);
            assert_eq!((told.kind, told.message), (kind, error.reason()));
        }
    }

    #[test]
    fn causes_are_not_repeated() {
        let failure = CallFailure::Failed(CallError::new(ErrorKind::Server, Stage::FirstByte, Retry::Now));
        assert_eq!(
            chain(&SyncFailure::Call { call: "get_users", failure }),
            "get_users failed: the server has a fault"
        );
    }
}

//! What the proxy's word on the server says of each hop: Tor, the way through it, the server, and its clock.

use protocol::value::Timestamp;
use protocol::{CallError, ErrorKind, Health, Probe, Stage};
use qubes_rpc::connection::CallFailure;

use super::{Check, name};
use crate::failure::chain;

/// By how many seconds the clocks may differ before one-time codes fail.
const CODES_FAIL: u64 = 60;
/// By how many nothing that looks at the time can be trusted.
const FAR_OFF: u64 = 300;
const MICROS: u64 = 1_000_000;

/// What the server was asked, and when by this VM's clock.
#[derive(Debug)]
pub(super) struct Asked {
    pub(super) before: Timestamp,
    pub(super) probe: Result<Probe, CallFailure>,
    pub(super) after: Timestamp,
}

/// Tor, the way, the server and its clock, as far as the proxy could be asked; `because_of` is why it could not.
pub(super) fn reached(because_of: &str, told: Option<(Result<Health, CallFailure>, Asked)>) -> [Check; 4] {
    let Some((health, asked)) = told else {
        return [name::TOR, name::ROUTE, name::SERVER, name::CLOCK].map(|name| Check::not_checked(name, because_of));
    };
    let tor = match health {
        Ok(health) => through_tor(&health),
        Err(error) => {
            Check::failure(name::TOR, format!("the proxy does not say how it is: {}", chain(&error)), PROXY_LOG)
        }
    };
    match asked.probe {
        Ok(probe) => [
            tor,
            Check::ok(name::ROUTE, "there is a way to the server"),
            Check::ok(name::SERVER, format!("it answers as SecureDrop does, after {} ms", probe.took_ms)),
            match probe.server_date {
                Some(date) => judge_clock(asked.before, date, asked.after),
                None => Check::warning(
                    name::CLOCK,
                    "the server does not say what time it is",
                    "compare this VM's clock with another one",
                ),
            },
        ],
        Err(CallFailure::Failed(error)) => unreached(tor, &error),
        Err(error) => [
            tor,
            Check::not_checked(name::ROUTE, name::SERVER),
            Check::failure(name::SERVER, format!("the proxy does not say: {}", chain(&error)), PROXY_LOG),
            Check::not_checked(name::CLOCK, name::SERVER),
        ],
    }
}

const PROXY_LOG: &str = "see the proxy's log, and whether the same version of Splitdrop is installed there";

fn through_tor(health: &Health) -> Check {
    if health.tor {
        return Check::ok(name::TOR, "the proxy goes through Tor");
    }
    Check::warning(
        name::TOR,
        "the proxy does not go through Tor: who watches the network sees which server it speaks to",
        "set SD_PROXY_TOR to on in dom0, unless the server is inside the newsroom",
    )
}

/// Tor, the way, the server and its clock where the server could not be asked.
fn unreached(tor: Check, error: &CallError) -> [Check; 4] {
    let not = Check::not_checked;
    let what = error.to_string();
    match error.stage {
        Stage::Socks => [
            Check::failure(name::TOR, what, "start Tor in the proxy VM, or set SD_PROXY_SOCKS to where it listens"),
            not(name::ROUTE, name::TOR),
            not(name::SERVER, name::TOR),
            not(name::CLOCK, name::TOR),
        ],
        Stage::Route | Stage::Connect => [
            tor,
            Check::failure(name::ROUTE, what, after_route(error)),
            not(name::SERVER, name::ROUTE),
            not(name::CLOCK, name::ROUTE),
        ],
        // The server was not asked.
        Stage::Admission => [
            tor,
            not(name::ROUTE, name::SERVER),
            Check::failure(name::SERVER, what, PROXY_LOG),
            not(name::CLOCK, name::SERVER),
        ],
        Stage::FirstByte | Stage::Body | Stage::Parse => [
            tor,
            Check::ok(name::ROUTE, "there is a way to the server"),
            Check::failure(name::SERVER, what, after_server(error.kind)),
            not(name::CLOCK, name::SERVER),
        ],
    }
}

fn after_route(error: &CallError) -> &'static str {
    match (error.stage, error.kind) {
        (Stage::Route, _) => {
            "ask whether the server is up, and look at SD_PROXY_ORIGIN and at Tor's client authorization in the proxy VM"
        }
        (_, ErrorKind::Timeout) => {
            "try once more; then look at Tor's log in the proxy VM, and ask whether the server is up"
        }
        (_, _) => "ask whether the server is up, and look at SD_PROXY_ORIGIN; for TLS, at the proxy VM's certificates",
    }
}

fn after_server(kind: ErrorKind) -> &'static str {
    match kind {
        ErrorKind::BadResponse | ErrorKind::NotFound | ErrorKind::TooLarge => {
            "look at SD_PROXY_ORIGIN: it has to be the address of SecureDrop's journalist interface"
        }
        ErrorKind::Unauthorized
        | ErrorKind::Conflict
        | ErrorKind::Refused
        | ErrorKind::RateLimited
        | ErrorKind::Server
        | ErrorKind::Unreachable
        | ErrorKind::Timeout => "tell the server's administrator, and try again later",
        ErrorKind::OutOfScope | ErrorKind::Cancelled | ErrorKind::Internal => PROXY_LOG,
    }
}

/// Compares the server's clock with this VM's, by which the server answered between `before` and `after`.
fn judge_clock(before: Timestamp, date: Timestamp, after: Timestamp) -> Check {
    // The server says whole seconds: it is up to a second later than it says.
    let earliest = date.get();
    let latest = earliest.saturating_add(MICROS);
    let behind = earliest.saturating_sub(after.get()) / MICROS;
    let ahead = before.get().saturating_sub(latest) / MICROS;
    let (seconds, how) = if behind > ahead { (behind, "behind") } else { (ahead, "ahead of") };
    let detail = format!("this VM's clock is {seconds} s {how} the server's");
    let next = "set the clock: in dom0 run `qvm-sync-clock`; if it is right, tell the server's administrator";
    if seconds > FAR_OFF {
        Check::failure(name::CLOCK, format!("{detail}: nobody can sign in"), next)
    } else if seconds > CODES_FAIL {
        Check::warning(name::CLOCK, format!("{detail}: one-time codes may be refused"), next)
    } else {
        Check::ok(name::CLOCK, "as the server's")
    }
}

#[cfg(test)]
mod tests {
    use protocol::{ApiLevel, Confinement, Retry, ServerContact};

    use super::super::Outcome;
    use super::*;

    fn at(seconds: u64) -> Timestamp {
        Timestamp::try_new(seconds * MICROS).unwrap()
    }

    fn told(tor: bool, probe: Result<Probe, CallFailure>) -> [Check; 4] {
        let health =
            Health { tor, speaks: ApiLevel::V1, contact: ServerContact::NoneYet, confinement: Confinement::NONE };
        reached("proxy", Some((Ok(health), Asked { before: at(1000), probe, after: at(1001) })))
    }

    fn outcomes(checks: &[Check; 4]) -> [Outcome; 4] {
        [checks[0].outcome, checks[1].outcome, checks[2].outcome, checks[3].outcome]
    }

    #[test]
    fn each_stage_of_a_failure_is_another_hop() {
        use Outcome::{Failure, NotChecked, Ok};
        for (kind, stage, expected, next) in [
            (ErrorKind::Unreachable, Stage::Socks, [Failure, NotChecked, NotChecked, NotChecked], "start Tor"),
            (ErrorKind::Unreachable, Stage::Route, [Ok, Failure, NotChecked, NotChecked], "client authorization"),
            (ErrorKind::Timeout, Stage::Connect, [Ok, Failure, NotChecked, NotChecked], "once more"),
            (ErrorKind::Unreachable, Stage::Connect, [Ok, Failure, NotChecked, NotChecked], "certificates"),
            (ErrorKind::Internal, Stage::Admission, [Ok, NotChecked, Failure, NotChecked], "proxy's log"),
            (ErrorKind::Server, Stage::FirstByte, [Ok, Ok, Failure, NotChecked], "administrator"),
            (ErrorKind::NotFound, Stage::FirstByte, [Ok, Ok, Failure, NotChecked], "SD_PROXY_ORIGIN"),
            (ErrorKind::BadResponse, Stage::Parse, [Ok, Ok, Failure, NotChecked], "journalist interface"),
        ] {
            let checks = told(true, Err(CallError::new(kind, stage, Retry::Never).into()));
            assert_eq!(outcomes(&checks), expected, "{stage:?}");
            let failed = checks.iter().find(|check| check.outcome == Failure).unwrap();
            assert!(failed.next_step.as_ref().unwrap().contains(next), "{failed:?}");
        }
    }

    #[test]
    fn without_tor_is_a_warning_and_without_a_date_too() {
        let checks = told(false, Ok(Probe { server_date: None, took_ms: 3 }));
        assert_eq!(outcomes(&checks), [Outcome::Warning, Outcome::Ok, Outcome::Ok, Outcome::Warning]);
        assert!(checks[0].next_step.as_ref().unwrap().contains("SD_PROXY_TOR"));
    }

    #[test]
    fn a_proxy_that_breaks_off_is_no_fault_of_the_way() {
        let broken = told(true, Err(CallFailure::Silent));
        assert_eq!(outcomes(&broken)[1..], [Outcome::NotChecked, Outcome::Failure, Outcome::NotChecked]);
        assert_eq!(outcomes(&reached("policy_metadata", None)), [Outcome::NotChecked; 4]);
    }

    #[test]
    fn the_clock_is_judged_by_what_the_round_trip_cannot_explain() {
        for (date, outcome, word) in [
            (1000, Outcome::Ok, "as the server"),
            // Said to the second, and asked within ten.
            (999, Outcome::Ok, "as the server"),
            (1010 + 60, Outcome::Ok, "as the server"),
            (1010 + 61, Outcome::Warning, "61 s behind"),
            (1010 + 301, Outcome::Failure, "301 s behind"),
            (1000 - 1 - 61, Outcome::Warning, "61 s ahead"),
            (1000 - 1 - 301, Outcome::Failure, "301 s ahead"),
            (0, Outcome::Failure, "ahead"),
        ] {
            let check = judge_clock(at(1000), at(date), at(1010));
            assert_eq!(check.outcome, outcome, "{date}");
            assert!(check.detail.contains(word), "{check:?}");
            assert_eq!(check.next_step.is_some(), outcome != Outcome::Ok);
        }
        let check = judge_clock(at(1000), Timestamp::MAX, at(1010));
        assert_eq!(check.outcome, Outcome::Failure);
    }
}

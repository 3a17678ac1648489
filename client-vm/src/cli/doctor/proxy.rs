//! dom0's policy, the proxy VM, and what the proxy says of the way to the server.

use std::path::Path;
use std::time::Duration;

use protocol::value::SoftwareVersion;
use protocol::{Call, Confinement, Health, Items, Landlock, Scope, Seccomp};
use qubes_rpc::connection::{Break, CallFailure, HelloError};
use qubes_rpc::qrexec::{OpenError, Qrexec, QrexecCall};

use super::reached::{Asked, reached};
use super::{Check, Findings, name};
use crate::cli::exit::CliError;
use crate::clock::Clock;
use crate::failure::chain;
use crate::proxy::{Patience, Proxy, ProxyError};
use crate::settings::Settings;

/// How long the proxy may take to say how it is.
const HEALTH_DEADLINE: Duration = Duration::from_secs(10);
/// How long the server may take to answer. Longer than the proxy takes for a connection, so that it says itself what is
/// wrong.
const PROBE_DEADLINE: Duration = Duration::from_secs(60);

/// What the proxy said in a call of the scope of the lists.
struct Examined {
    software: SoftwareVersion,
    health: Result<Health, CallFailure>,
    asked: Asked,
}

/// What is known of the proxy VM after some calls.
#[derive(Default)]
struct Known {
    /// The first call that dom0 let through and that did not come about.
    failed: Option<OpenError>,
    answered: bool,
    examined: Option<Examined>,
}

pub(super) async fn checks(findings: &mut Findings<'_>, settings: &Settings, ask: bool) -> Result<(), CliError> {
    let mut known = Known::default();
    for (scope, policy) in Scope::ALL.into_iter().zip(name::POLICY) {
        let check = if findings.lacks(name::QREXEC) {
            Check::not_checked(policy, name::QREXEC)
        } else if scope == Scope::Delete && !ask {
            let next = "`splitdrop doctor --ask` makes this call too";
            Check::left_out(policy, "dom0 may ask somebody about it", next)
        } else if known.failed.as_ref().is_some_and(is_lasting) {
            Check::not_checked(policy, name::PROXY)
        } else {
            look(settings, scope, policy, &mut known).await?
        };
        findings.add(check).await?;
    }
    for check in of_proxy(settings, &known, findings.lacks(name::QREXEC)) {
        findings.add(check).await?;
    }
    findings.add(sandbox(settings.proxy_vm.as_str(), known.examined.as_ref())).await?;
    let because_of = [name::POLICY[1], name::PROXY, name::PROXY_SETTINGS, name::PROXY_VERSION];
    let because_of = because_of.into_iter().find(|name| findings.lacks(name)).unwrap_or(name::PROXY);
    for check in reached(because_of, known.examined.map(|examined| (examined.health, examined.asked))) {
        findings.add(check).await?;
    }
    Ok(())
}

/// Whether another call would end in the same way, after as long a wait.
fn is_lasting(error: &OpenError) -> bool {
    match error {
        OpenError::QrexecFailed { .. } | OpenError::Hello { source: HelloError::TimedOut, .. } => true,
        OpenError::NotStarted { .. }
        | OpenError::Refused { .. }
        | OpenError::NoSuchService { .. }
        | OpenError::Died { .. }
        | OpenError::Hello { .. } => false,
    }
}

/// Opens a call of a scope, and in that of the lists asks how the proxy and the server are.
async fn look(settings: &Settings, scope: Scope, policy: &'static str, known: &mut Known) -> Result<Check, CliError> {
    let qrexec = Qrexec { program: settings.qrexec_client.clone() };
    let proxy = Proxy::new(qrexec, settings.proxy_vm.clone(), control::greeting::own_version()?);
    let proxy = proxy.asked_about(settings.dom0_asks.clone());
    let patience = if scope == Scope::Delete { Patience::Asking } else { Patience::Once };
    match proxy.open(scope, None, patience, || {}).await {
        Ok(call) => {
            known.answered = true;
            if scope == Scope::Metadata {
                known.examined = Some(examine(&call).await);
            }
            call.close().await;
            Ok(Check::ok(policy, "dom0 allows it"))
        }
        Err(ProxyError::Open(error)) => Ok(of_policy(policy, scope, error, known)),
        Err(error @ (ProxyError::Call(_) | ProxyError::Name(_) | ProxyError::GivenUp)) => {
            Ok(Check::failure(policy, chain(&error), "report this fault of Splitdrop"))
        }
    }
}

/// What a call that did not come about says of dom0's policy.
fn of_policy(policy: &'static str, scope: Scope, error: OpenError, known: &mut Known) -> Check {
    match error {
        OpenError::Refused { .. } => Check::failure(
            policy,
            chain(&error),
            format!(
                "in dom0 look at the line `splitdrop.Proxy +{scope}` in /etc/qubes/policy.d, and whether the VM starts; one \
                 syntax error in any file there refuses every call, and dom0's journal says which"
            ),
        ),
        OpenError::NotStarted { .. } => Check::failure(policy, chain(&error), "see qrexec_program"),
        error => {
            let lasting = is_lasting(&error);
            known.failed.get_or_insert(error);
            if lasting { Check::not_checked(policy, name::PROXY) } else { Check::ok(policy, "dom0 allows it") }
        }
    }
}

async fn examine(call: &QrexecCall) -> Examined {
    let health = match one(call, Call::Health, HEALTH_DEADLINE).await {
        Ok(Some(Items::Health(health))) => Ok(health),
        // The connection has checked the answer's kind and count.
        Ok(_other) => Err(CallFailure::Incomplete(Break::Closed)),
        Err(failure) => Err(failure),
    };
    let before = Clock::System.now();
    let probe = match one(call, Call::Probe, PROBE_DEADLINE).await {
        Ok(Some(Items::Probe(probe))) => Ok(probe),
        Ok(_other) => Err(CallFailure::Incomplete(Break::Closed)),
        Err(failure) => Err(failure),
    };
    let asked = Asked { before, probe, after: Clock::System.now() };
    Examined { software: call.connection().software().clone(), health, asked }
}

async fn one(call: &QrexecCall, what: Call, deadline: Duration) -> Result<Option<Items>, CallFailure> {
    call.connection().call(what, deadline).await?.one().await
}

/// Whether the proxy starts, takes its settings, and is of this version.
fn of_proxy(settings: &Settings, known: &Known, without_qrexec: bool) -> [Check; 3] {
    let vm = settings.proxy_vm.as_str();
    let not_checked = |because_of| {
        [name::PROXY, name::PROXY_SETTINGS, name::PROXY_VERSION].map(|name| Check::not_checked(name, because_of))
    };
    let answers = || Check::ok(name::PROXY, format!("{vm} runs it, and it answers"));
    let fails = |error: &OpenError, next: String| {
        let [_, settings, version] = not_checked(name::PROXY);
        [Check::failure(name::PROXY, chain(error), next), settings, version]
    };
    match &known.failed {
        None if known.answered => [
            answers(),
            Check::ok(name::PROXY_SETTINGS, "it takes calls"),
            version(vm, known.examined.as_ref(), name::POLICY[1]),
        ],
        None if without_qrexec => not_checked(name::QREXEC),
        None => not_checked(name::POLICY[0]),
        Some(error) => match error {
            OpenError::Hello { source: HelloError::Refused(_), .. } => [
                answers(),
                Check::failure(
                    name::PROXY_SETTINGS,
                    chain(error),
                    format!("set it in dom0 with `qvm-features {vm} vm-config.NAME VALUE`, then restart {vm}"),
                ),
                version(vm, known.examined.as_ref(), name::PROXY_SETTINGS),
            ],
            OpenError::Hello { source: HelloError::Handshake(_), .. } => [
                answers(),
                Check::not_checked(name::PROXY_SETTINGS, name::PROXY_VERSION),
                Check::failure(
                    name::PROXY_VERSION,
                    chain(error),
                    format!("install the same version of Splitdrop in this VM and in {vm}, then restart {vm}"),
                ),
            ],
            OpenError::NoSuchService { .. } => fails(
                error,
                format!("install Splitdrop's proxy and its service file in the template of {vm}, then restart {vm}"),
            ),
            OpenError::QrexecFailed { .. } => {
                fails(error, format!("in dom0 run `qvm-start {vm}`, and see what it says"))
            }
            OpenError::Hello { source: HelloError::TimedOut, .. } => {
                fails(error, format!("look whether {vm} runs, start it by hand if not, and try again"))
            }
            OpenError::NotStarted { program, .. } => fails(error, see(program)),
            OpenError::Refused { .. } | OpenError::Died { .. } | OpenError::Hello { .. } => {
                fails(error, format!("see the log of {vm}: the proxy could not start, or its sandbox or log could not"))
            }
        },
    }
}

fn see(program: &Path) -> String {
    format!("see whether {} can be run", program.display())
}

/// Whether the proxy is of this version; `without` is why that is not known.
fn version(vm: &str, examined: Option<&Examined>, without: &str) -> Check {
    match examined {
        None => Check::not_checked(name::PROXY_VERSION, without),
        Some(examined) => judge_version(vm, examined.software.as_str()),
    }
}

fn judge_version(vm: &str, theirs: &str) -> Check {
    let own = env!("CARGO_PKG_VERSION");
    if theirs == own {
        return Check::ok(name::PROXY_VERSION, format!("{own}, as here"));
    }
    Check::warning(
        name::PROXY_VERSION,
        format!("the proxy is version {theirs} and this program is version {own}"),
        format!("install the same version in this VM and in {vm}, then restart {vm}"),
    )
}

/// How the proxy is confined.
fn sandbox(vm: &str, examined: Option<&Examined>) -> Check {
    match examined.map(|examined| &examined.health) {
        Some(Ok(health)) => judge_sandbox(vm, health.confinement),
        Some(Err(_)) | None => Check::not_checked(name::PROXY_SANDBOX, name::POLICY[1]),
    }
}

fn judge_sandbox(vm: &str, confinement: Confinement) -> Check {
    let Confinement { seccomp, landlock } = confinement;
    let levels = format!("seccomp {}, Landlock {}", seccomp.name(), landlock.name());
    if seccomp == Seccomp::Off {
        let next = format!("start {vm} with a kernel that has seccomp; no proxy runs without");
        return Check::failure(name::PROXY_SANDBOX, levels, next);
    }
    match landlock {
        Landlock::FilesAndNetwork | Landlock::FilesNetworkAndSignals => Check::ok(name::PROXY_SANDBOX, levels),
        Landlock::None | Landlock::Files => {
            let next = format!("start {vm} with a kernel of Linux 6.7 or later that has Landlock");
            Check::warning(name::PROXY_SANDBOX, levels, next)
        }
    }
}

#[cfg(test)]
mod tests {
    use protocol::Refusal;
    use protocol::handshake::decode_welcome;
    use qubes_rpc::name::{ServiceName, VmName};

    use super::super::Outcome;
    use super::*;

    fn settings() -> Settings {
        Settings::load(|name| (name == "HOME").then(|| "/home/user".into()), None).unwrap()
    }

    fn vm() -> VmName {
        "sd-proxy".parse().unwrap()
    }

    /// What a call of one scope and the checks of the proxy say after `error`.
    fn told(error: OpenError) -> Vec<Check> {
        let mut known = Known::default();
        let policy = of_policy("policy_mark", Scope::Mark, error, &mut known);
        std::iter::once(policy).chain(of_proxy(&settings(), &known, false)).collect()
    }

    #[test]
    fn each_way_in_which_a_call_does_not_come_about_has_its_line() {
        let service = ServiceName::try_new("splitdrop.Proxy", "mark").unwrap();
        let hello = |source| OpenError::Hello { vm: vm(), source };
        let name = protocol::value::SettingName::try_new("SD_PROXY_ORIGIN").unwrap();
        let other_version = decode_welcome(b"garbage").unwrap_err();
        for (error, failing, word, next) in [
            (OpenError::Refused { vm: vm(), service: service.clone() }, "policy_mark", "refused", "+mark"),
            (OpenError::NoSuchService { vm: vm(), service }, "proxy", "no service", "install"),
            (OpenError::QrexecFailed { vm: vm() }, "proxy", "could not call", "qvm-start sd-proxy"),
            (hello(HelloError::TimedOut), "proxy", "in time", "by hand"),
            (hello(HelloError::Ended), "proxy", "ended", "log of sd-proxy"),
            (hello(Refusal::SettingMissing(name).into()), "proxy_settings", "SD_PROXY_ORIGIN", "qvm-features"),
            (hello(other_version.into()), "proxy_version", "handshake", "same version"),
        ] {
            let checks = told(error);
            let failed: Vec<_> = checks.iter().filter(|check| check.outcome == Outcome::Failure).collect();
            let [check] = &failed[..] else { panic!("{checks:?}") };
            assert_eq!(check.name, failing);
            assert!(check.detail.contains(word), "{check:?}");
            assert!(check.next_step.as_ref().unwrap().contains(next), "{check:?}");
        }
    }

    #[test]
    fn a_sandbox_with_less_than_it_could_have_is_a_warning_and_none_a_failure() {
        let with = |seccomp, landlock| judge_sandbox("sd-proxy", Confinement { seccomp, landlock });
        assert_eq!(with(Seccomp::Enforced, Landlock::FilesAndNetwork).outcome, Outcome::Ok);
        let less = with(Seccomp::Enforced, Landlock::Files);
        assert_eq!(less.outcome, Outcome::Warning);
        assert!(less.detail.contains("Landlock files") && less.next_step.unwrap().contains("6.7"));
        assert_eq!(with(Seccomp::Off, Landlock::FilesAndNetwork).outcome, Outcome::Failure);
    }

    #[test]
    fn another_version_is_a_warning() {
        assert_eq!(judge_version("sd-proxy", env!("CARGO_PKG_VERSION")).outcome, Outcome::Ok);
        let other = judge_version("sd-proxy", "0.0.1");
        assert_eq!(other.outcome, Outcome::Warning);
        assert!(other.detail.contains("0.0.1") && other.next_step.unwrap().contains("restart sd-proxy"));
    }
}

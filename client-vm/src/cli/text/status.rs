//! How things are, in words.

use control::{ErasureFault, ProxyStatus, Status};
use protocol::value::Timestamp;
use protocol::{Confinement, Landlock, Seccomp, ServerContact};

use super::super::safe_text::sanitized;
use super::amount::{ago, until};
use super::key::grouped;
use super::{counted, download, outcome, queue, reading, short_time, signed_in};

pub(in crate::cli) fn status(status: &Status, now: Timestamp) -> String {
    let past = |then| format!("{} ({})", ago(then, now), short_time(then));
    let mut text = signed_in(&status.session);
    let mut line = |label: &str, value: &str| text.push_str(&format!("{label:<12} {value}\n"));
    if let Some(running) = &status.running_sync {
        line("syncing", &format!("since {}", short_time(running.started)));
    }
    match &status.last_sync {
        Some(last) => line("last sync", &format!("{}, {}", past(last.ended), outcome(last))),
        None => line("last sync", "never"),
    }
    if let Some(success) = status.last_success
        && status.last_sync.as_ref().is_some_and(|last| last.ended != success)
    {
        line("last success", &past(success));
    }
    if let Some(next) = status.next_sync {
        line("next sync", &format!("{} ({})", until(next, now), short_time(next)));
    }
    if status.stale {
        line("stale", "what is shown is old: syncs have failed, or none has succeeded for long");
    }
    let totals = &status.totals;
    line("held", &format!("{} sources, {} items, {} unread", totals.sources, totals.items, totals.unread));
    if let Some(since) = totals.unreadable.since {
        let count = totals.unreadable.count;
        line("unreadable", &format!("{count} records, since {}", short_time(since)));
    }
    match totals.held_removals {
        0 => {}
        sources => line(
            "removals",
            &format!(
                "held, of {}: the server lists much less than before; `splitdrop removals show` lists them",
                counted(sources, "source")
            ),
        ),
    }
    if let Some(fault) = &status.erasure {
        line("erasure", &format!("{}, since {}", not_erased(fault), short_time(fault.since)));
    }
    if let Some(counts) = queue::counts(&totals.queue, status.queue.acts.running) {
        line("queue", &counts);
    }
    for (label, lane) in [("messages", status.queue.messages), ("files", status.queue.files)] {
        if let Some(counts) = download::lane(lane, "being fetched", "failed") {
            line(label, &counts);
        }
    }
    if let Some(counts) = reading::counts(status.queue.decrypt) {
        line("decrypting", &counts);
    }
    for reason in &status.queue.paused {
        line("paused", &download::reason(reason));
    }
    if let Some(waiting) = download::waiting_for_call(&status.queue) {
        line("calls", &waiting);
    }
    line("proxy", &proxy(&status.proxy));
    let openpgp = &status.openpgp;
    let backend = sanitized(&openpgp.backend);
    match &openpgp.problem {
        Some(problem) => line("private key", &format!("by {backend}; nothing is decrypted: {}", sanitized(problem))),
        None => line("private key", &format!("by {backend}")),
    }
    match &openpgp.newsroom_key {
        Ok(fingerprint) => line("newsroom key", &grouped(fingerprint)),
        Err(problem) => line("newsroom key", &format!("none, and nobody can be answered: {}", sanitized(problem))),
    }
    match openpgp.held_keys {
        0 => {}
        1 => line("held keys", "1 source's, to whom replies are held back: `splitdrop sources` marks it"),
        more => line(
            "held keys",
            &format!("{more} sources', to whom replies are held back: `splitdrop sources` marks them"),
        ),
    }
    text
}

/// What is still there though it is to be erased.
pub(super) fn not_erased(fault: &ErasureFault) -> String {
    if fault.items == 0 {
        return format!("what was deleted may still be in the database: {}", sanitized(&fault.reason));
    }
    format!(
        "{} that {} deleted {} still on the disk: {}",
        counted(fault.items, "item"),
        if fault.items == 1 { "was" } else { "were" },
        if fault.items == 1 { "is" } else { "are" },
        sanitized(&fault.reason)
    )
}

fn proxy(proxy: &ProxyStatus) -> String {
    match proxy {
        ProxyStatus::NotConnected => "not connected".to_owned(),
        ProxyStatus::Failed { message } => format!("does not answer: {}", sanitized(message)),
        ProxyStatus::Connected { software, health } => {
            let way = if health.tor { "through Tor" } else { "WITHOUT Tor" };
            let contact = match health.contact {
                ServerContact::NoneYet => "has not asked the server yet".to_owned(),
                ServerContact::Answered { ago_ms } => format!("the server answered {} s ago", ago_ms / 1000),
                ServerContact::Failed { kind, stage, ago_ms } => {
                    format!("{} at {}, {} s ago", kind.describe(), stage.name(), ago_ms / 1000)
                }
            };
            format!("version {}, {way}; {}; {contact}", software.as_str(), confined(health.confinement))
        }
    }
}

/// What the kernel keeps the proxy from.
fn confined(confinement: Confinement) -> String {
    let seccomp = match confinement.seccomp {
        Seccomp::Off => "NOT confined by seccomp",
        Seccomp::Enforced => "confined by seccomp",
    };
    let landlock = match confinement.landlock {
        Landlock::None => "NOT by Landlock",
        Landlock::Files => "by Landlock: files, NOT the network",
        Landlock::FilesAndNetwork => "by Landlock: files and network",
        Landlock::FilesNetworkAndSignals => "by Landlock: files, network and signals",
    };
    format!("{seccomp}, {landlock}")
}

#[cfg(test)]
mod tests {
    use control::{Counts, LaneCounts, PauseReason, QueueStatus, SyncOutcome, SyncReport, SyncStart};
    use protocol::{ApiLevel, Health};

    use super::super::super::samples::{self, at};
    use super::*;

    #[test]
    fn only_what_there_is_to_say_is_said() {
        assert_eq!(
            status(&samples::status(), at(0)),
            "Nobody is signed in.\n\
             last sync    never\n\
             held         0 sources, 0 items, 0 unread\n\
             proxy        not connected\n\
             private key  by split-gpg\n\
             newsroom key AAAA AAAA AAAA AAAA AAAA AAAA AAAA AAAA AAAA AAAA\n"
        );
    }

    #[test]
    fn it_says_how_far_the_proxy_is_confined() {
        let mut connected = samples::status();
        let levels = [
            (Landlock::None, "NOT by Landlock"),
            (Landlock::Files, "by Landlock: files, NOT the network"),
            (Landlock::FilesAndNetwork, "by Landlock: files and network"),
            (Landlock::FilesNetworkAndSignals, "by Landlock: files, network and signals"),
        ];
        for (landlock, said) in levels {
            let health = Health {
                tor: true,
                speaks: ApiLevel::V1,
                contact: ServerContact::NoneYet,
                confinement: Confinement { seccomp: Seccomp::Enforced, landlock },
            };
            connected.proxy = ProxyStatus::Connected { software: connected.version.clone(), health };
            let line = "proxy        version 0.1.0, through Tor; confined by seccomp, ";
            let expected = format!("{line}{said}; has not asked the server yet\n");
            assert!(status(&connected, at(0)).contains(&expected), "{expected}");
        }
    }

    #[test]
    fn it_says_why_nothing_is_decrypted_and_nobody_answered() {
        let mut barred = samples::status();
        barred.openpgp.problem = Some("dom0\nrefused".to_owned());
        barred.openpgp.newsroom_key = Err("no\u{1b}key".to_owned());
        barred.openpgp.held_keys = 2;
        barred.queue.decrypt = LaneCounts { waiting: 7, running: 0, failed: 0 };
        let text = status(&barred, at(0));
        for line in [
            "decrypting   7 waiting\n",
            "private key  by split-gpg; nothing is decrypted: dom0\\u{a}refused\n",
            "newsroom key none, and nobody can be answered: no\\u{1b}key\n",
            "held keys    2 sources', to whom replies are held back: `splitdrop sources` marks them\n",
        ] {
            assert!(text.contains(line), "{text}");
        }
    }

    #[test]
    fn it_says_how_old_it_is_what_comes_next_and_what_holds_it_up() {
        let last = SyncReport {
            start: SyncStart { asked: at(9), started: at(9) },
            ended: at(10),
            outcome: SyncOutcome::Cancelled,
            counts: Counts::default(),
            rows_written: 0,
            calls: Vec::new(),
        };
        let lane = |waiting, running| LaneCounts { waiting, running, failed: 0 };
        let mut all = Status {
            last_sync: Some(last),
            last_success: Some(at(4)),
            next_sync: Some(at(100)),
            stale: true,
            queue: QueueStatus {
                waiting_for_call: 2,
                paused: vec![PauseReason::NoSession, PauseReason::User],
                acts: lane(2, 1),
                messages: lane(312, 4),
                files: LaneCounts { failed: 1, ..lane(0, 0) },
                decrypt: lane(3, 2),
            },
            ..samples::status()
        };
        all.totals.queue.waiting = 2;
        assert_eq!(
            status(&all, at(70)),
            "Nobody is signed in.\n\
             last sync    1 min ago (1970-01-01 00:00:10Z), sync cancelled\n\
             last success 1 min ago (1970-01-01 00:00:04Z)\n\
             next sync    in 30 s (1970-01-01 00:01:40Z)\n\
             stale        what is shown is old: syncs have failed, or none has succeeded for long\n\
             held         0 sources, 0 items, 0 unread\n\
             queue        2 waiting, 1 being sent; `splitdrop queue` lists them\n\
             messages     312 waiting, 4 of them being fetched\n\
             files        1 failed\n\
             decrypting   3 waiting, 2 of them being decrypted\n\
             paused       nobody is signed in: run `splitdrop login`\n\
             paused       paused by you: run `splitdrop resume`\n\
             calls        2 wait for a call to end: at most 8 go to other VMs at the same time\n\
             proxy        not connected\n\
             private key  by split-gpg\n\
             newsroom key AAAA AAAA AAAA AAAA AAAA AAAA AAAA AAAA AAAA AAAA\n"
        );
    }
}

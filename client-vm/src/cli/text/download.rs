//! Downloads in words, and why nothing is fetched or sent.

use std::time::Duration;

use control::{
    DownloadChange, DownloadEntry, DownloadLane, DownloadState, DownloadStep, LaneCounts, PauseReason, QueueStatus,
    Wanted,
};
use protocol::value::{Designation, ItemId, Timestamp};

use super::super::safe_text::{sanitized, sanitized_within};
use super::amount::{bytes, percent, span};
use super::queue::postponed;
use super::{NAME_COLUMNS, counted, short_id, short_time, table};

/// How far a download is that runs.
#[derive(Debug)]
pub(in crate::cli) struct Progress<'a> {
    pub(in crate::cli) item: ItemId,
    /// The source's, once it is known.
    pub(in crate::cli) designation: Option<&'a Designation>,
    /// In bytes.
    pub(in crate::cli) received: u64,
    /// In bytes, as the server says or lists it.
    pub(in crate::cli) total: u64,
    /// In bytes a second, once it is known.
    pub(in crate::cli) rate: Option<u64>,
}

/// What was asked for.
pub(in crate::cli) fn wanted(wanted: &Wanted) -> String {
    let Wanted { asked, already } = *wanted;
    match (asked, already) {
        (0, 0) => "There is nothing to fetch.\n".to_owned(),
        (0, 1) => "It is there already, or was asked for before.\n".to_owned(),
        (0, _) => format!("All {already} are there already, or were asked for before.\n"),
        (_, 0) => format!("Fetching {}.\n", counted(asked, "item")),
        (_, 1) => format!("Fetching {}. 1 is there already, or was asked for before.\n", counted(asked, "item")),
        (_, _) => {
            format!("Fetching {}. {already} are there already, or were asked for before.\n", counted(asked, "item"))
        }
    }
}

/// What is not fetched after all.
pub(in crate::cli) fn stopped(stopped: &Wanted) -> String {
    let Wanted { asked, already } = *stopped;
    match (asked, already) {
        (0, _) => "None of it was to be fetched.\n".to_owned(),
        (_, 0) => format!("No longer fetching {}.\n", counted(asked, "item")),
        (_, _) => format!("No longer fetching {}. {already} more were not to be fetched.\n", counted(asked, "item")),
    }
}

/// The end of a wait: what is there, each with its length in bytes and its name.
pub(in crate::cli) fn all_are_there(there: &[(ItemId, u64, Option<&str>)]) -> String {
    let mut text = match there {
        [] => String::new(),
        [_] => "It is there, decrypted:\n".to_owned(),
        more => format!("All {} are there, decrypted:\n", more.len()),
    };
    for (item, length, name) in there {
        let name = name.map(|name| format!("  {}", sanitized(name))).unwrap_or_default();
        text.push_str(&format!("{}  {}{name}\n", short_id(item.as_str()), bytes(*length)));
    }
    text
}

/// A line about what is being decrypted, or waits to be.
pub(in crate::cli) fn decrypting(item: ItemId, reason: Option<&str>) -> String {
    match reason {
        None => format!("{}  decrypting", short_id(item.as_str())),
        Some(reason) => format!("{}  not decrypted yet: {}", short_id(item.as_str()), sanitized(reason)),
    }
}

/// A line about a download that runs. What is least missed comes last.
pub(in crate::cli) fn progress(progress: &Progress<'_>) -> String {
    let Progress { item, designation, received, total, rate } = progress;
    let mut line = format!(
        "{}  {:>3}%  {} of {}",
        short_id(item.as_str()),
        percent(*received, *total),
        bytes(*received),
        bytes(*total)
    );
    if let Some(rate) = rate {
        line.push_str(&format!("  {}/s", bytes(*rate)));
        if let Some(seconds) = total.saturating_sub(*received).checked_div(*rate) {
            line.push_str(&format!("  {} left", span(Duration::from_secs(seconds))));
        }
    }
    if let Some(designation) = designation {
        line.push_str(&format!("  {}", sanitized_within(designation.as_str(), NAME_COLUMNS)));
    }
    line
}

/// A line about a download that waits for its next try.
pub(in crate::cli) fn postponed_download(item: ItemId, reason: &str, next_try: Option<Timestamp>) -> String {
    format!("{}  {}", short_id(item.as_str()), postponed(reason, next_try))
}

/// That calls wait for others to end, in one line without an end; none when none does.
pub(in crate::cli) fn waiting_for_call(queue: &QueueStatus) -> Option<String> {
    let most = crate::proxy::MAX_CALLS;
    match queue.waiting_for_call {
        0 => None,
        1 => Some(format!("1 waits for a call to end: at most {most} go to other VMs at the same time")),
        some => Some(format!("{some} wait for a call to end: at most {most} go to other VMs at the same time")),
    }
}

/// Why nothing is sent or fetched, in one line without an end; none when work goes on.
pub(in crate::cli) fn paused(reasons: &[PauseReason]) -> Option<String> {
    if reasons.is_empty() {
        return None;
    }
    let sends = reasons.iter().all(|reason| matches!(reason, PauseReason::NoRoom { .. } | PauseReason::Dom0));
    let fetches = !reasons.iter().any(|reason| matches!(reason, PauseReason::NoRoom { free, kept } if free < kept));
    let what = match (sends, fetches) {
        (true, true) => "Not all is fetched",
        (true, false) => "Nothing is fetched",
        (false, _) => "Nothing is sent or fetched",
    };
    let reasons: Vec<_> = reasons.iter().map(reason).collect();
    Some(format!("{what}: {}", reasons.join("; ")))
}

/// One reason, and what ends it.
pub(super) fn reason(reason: &PauseReason) -> String {
    match reason {
        PauseReason::NoSession => "nobody is signed in: run `splitdrop login`".to_owned(),
        PauseReason::Network { since, message } => {
            format!(
                "no way to the server since {}, it is tried again by itself ({})",
                short_time(*since),
                sanitized(message)
            )
        }
        PauseReason::User => "paused by you: run `splitdrop resume`".to_owned(),
        PauseReason::Dom0 => "dom0 would ask about another call for messages and replies: run `splitdrop refresh`, \
                               and answer it there"
            .to_owned(),
        PauseReason::NoRoom { free, kept } => {
            format!("{} are free on the disk, and {} are kept: make room, and it goes on", bytes(*free), bytes(*kept))
        }
    }
}

/// The downloads that run, wait or have failed. Of messages, of which there may be many, only those that run, have failed or
/// wait for another try are listed; the others are counted.
pub(super) fn downloads(entries: &[DownloadEntry]) -> String {
    let waits = |entry: &&DownloadEntry| match (entry.lane, &entry.state) {
        (DownloadLane::Messages, DownloadState::Waiting { next_try: None, .. }) => true,
        (
            DownloadLane::Messages,
            DownloadState::Waiting { next_try: Some(_), .. }
            | DownloadState::Running { .. }
            | DownloadState::Failed { .. },
        )
        | (DownloadLane::Files, _) => false,
    };
    let mut rows =
        vec![["FETCH", "SOURCE", "ITEM", "BYTES", "STATE", "ATTEMPTS", "NEXT TRY", "REASON"].map(str::to_owned)];
    for entry in entries.iter().filter(|entry| !waits(entry)) {
        let (next_try, reason) = match &entry.state {
            DownloadState::Running { .. } => (None, None),
            DownloadState::Waiting { next_try, reason } => (*next_try, reason.as_deref()),
            DownloadState::Failed { reason } => (None, Some(reason.as_str())),
        };
        rows.push([
            match (entry.lane, &entry.item) {
                (DownloadLane::Files, _) => "file",
                (DownloadLane::Messages, ItemId::Submission(_)) => "message",
                (DownloadLane::Messages, ItemId::Reply(_)) => "reply",
            }
            .to_owned(),
            sanitized_within(entry.designation.as_str(), NAME_COLUMNS),
            short_id(entry.item.as_str()),
            entry.size.get().to_string(),
            state(entry),
            entry.attempts.to_string(),
            next_try.map(short_time).unwrap_or_default(),
            reason.map(sanitized).unwrap_or_default(),
        ]);
    }
    let mut text = if rows.len() > 1 { table(&rows) } else { String::new() };
    match entries.iter().filter(waits).count() {
        0 => {}
        1 => text.push_str("1 message or reply waits to be fetched.\n"),
        more => text.push_str(&format!("{more} messages and replies wait to be fetched.\n")),
    }
    if entries.iter().any(|entry| matches!(entry.state, DownloadState::Failed { .. })) {
        text.push_str("\nWhat has failed is not tried again by itself: `splitdrop download ITEM` does, or `--all`.\n");
    }
    text
}

fn state(entry: &DownloadEntry) -> String {
    match &entry.state {
        DownloadState::Running { received } => {
            format!("{}%, {} are there", percent(*received, entry.size.get()), bytes(*received))
        }
        DownloadState::Waiting { .. } => "waiting".to_owned(),
        DownloadState::Failed { .. } => "failed".to_owned(),
    }
}

/// How much of a lane is to be done, in one line; none when there is nothing to say. `under_way` says what is done with
/// what runs, `failed` how it ends badly.
pub(super) fn lane(counts: LaneCounts, under_way: &str, failed: &str) -> Option<String> {
    let mut parts = Vec::new();
    match (counts.waiting, counts.running) {
        (0, 0) => {}
        (waiting, 0) => parts.push(format!("{waiting} waiting")),
        (waiting, running) => parts.push(format!("{waiting} waiting, {running} of them {under_way}")),
    }
    if counts.failed > 0 {
        parts.push(format!("{} {failed}", counts.failed));
    }
    if parts.is_empty() { None } else { Some(parts.join(", ")) }
}

/// A step of a download.
pub(super) fn change(change: &DownloadChange) -> String {
    let step = match &change.step {
        DownloadStep::Started => "started".to_owned(),
        DownloadStep::Progress { received, total: Some(total) } => {
            format!("{}%, {} of {}", percent(*received, *total), bytes(*received), bytes(*total))
        }
        DownloadStep::Progress { received, total: None } => format!("{} are there", bytes(*received)),
        DownloadStep::Stored { size } => format!("all {} are there", bytes(*size)),
        DownloadStep::Postponed { failure, next_try } => postponed(&failure.message, *next_try),
        DownloadStep::Failed(failure) => format!("failed: {}", sanitized(&failure.message)),
        DownloadStep::Stopped => "stopped".to_owned(),
    };
    let kind = match change.item {
        ItemId::Submission(_) => "submission",
        ItemId::Reply(_) => "reply",
    };
    format!("Download of {kind} {} of {}: {step}.\n", short_id(change.item.as_str()), short_id(change.source.as_str()))
}

#[cfg(test)]
mod tests {
    use control::{Failure, FailureKind};

    use super::super::super::samples::{at, download, item, source_id};
    use super::*;

    fn cells(text: &str) -> Vec<String> {
        let cells =
            |line: &str| line.split("  ").map(str::trim).filter(|cell| !cell.is_empty()).collect::<Vec<_>>().join("|");
        text.lines().map(cells).collect()
    }

    #[test]
    fn what_was_asked_for_is_counted() {
        let say = |asked, already| wanted(&Wanted { asked, already });
        assert_eq!(say(0, 0), "There is nothing to fetch.\n");
        assert_eq!(say(1, 0), "Fetching 1 item.\n");
        assert_eq!(say(3, 1), "Fetching 3 items. 1 is there already, or was asked for before.\n");
        assert_eq!(say(0, 2), "All 2 are there already, or were asked for before.\n");
        let say = |asked, already| stopped(&Wanted { asked, already });
        assert_eq!(say(2, 0), "No longer fetching 2 items.\n");
        assert_eq!(say(0, 2), "None of it was to be fetched.\n");
    }

    #[test]
    fn what_is_there_at_the_end_has_a_length_and_may_have_a_name() {
        assert_eq!(all_are_there(&[]), "");
        let one = [(item(1), 1_200, Some("x\u{202e}fdp.exe"))];
        assert_eq!(all_are_there(&one), "It is there, decrypted:\n9b040001  1.2 kB  x\\u{202e}fdp.exe\n");
        let two = [(item(1), 5, None), (item(2), 1_000_000, Some("a.pdf"))];
        assert_eq!(all_are_there(&two), "All 2 are there, decrypted:\n9b040001  5 B\n9b040002  1.0 MB  a.pdf\n");
        assert_eq!(decrypting(item(1), None), "9b040001  decrypting");
        assert_eq!(decrypting(item(1), Some("no\nkey")), "9b040001  not decrypted yet: no\\u{a}key");
    }

    #[test]
    fn files_are_listed_and_waiting_messages_counted() {
        let message = |number, state| DownloadEntry { lane: DownloadLane::Messages, ..download(number, state) };
        let waiting = || DownloadState::Waiting { next_try: None, reason: None };
        let later = DownloadState::Waiting { next_try: Some(at(60)), reason: Some("no\nway".to_owned()) };
        let entries = [
            message(1, DownloadState::Running { received: 12_500_000 }),
            message(2, waiting()),
            message(3, waiting()),
            DownloadEntry { attempts: 2, ..message(7, later.clone()) },
            download(4, waiting()),
            download(5, later),
            download(6, DownloadState::Failed { reason: "gone".to_owned() }),
        ];
        assert_eq!(
            cells(&downloads(&entries)),
            [
                "FETCH|SOURCE|ITEM|BYTES|STATE|ATTEMPTS|NEXT TRY|REASON",
                "message|candid marmot|9b040001|25000000|50%, 12.5 MB are there|0",
                "message|candid marmot|9b040007|25000000|waiting|2|1970-01-01 00:01:00Z|no\\u{a}way",
                "file|candid marmot|9b040004|25000000|waiting|0",
                "file|candid marmot|9b040005|25000000|waiting|0|1970-01-01 00:01:00Z|no\\u{a}way",
                "file|candid marmot|9b040006|25000000|failed|0|gone",
                "2 messages and replies wait to be fetched.",
                "",
                "What has failed is not tried again by itself: `splitdrop download ITEM` does, or `--all`.",
            ]
        );
        assert_eq!(downloads(&entries[1..2]), "1 message or reply waits to be fetched.\n");
        assert_eq!(downloads(&[]), "");
    }

    #[test]
    fn a_pause_says_what_ends_it() {
        assert_eq!(paused(&[]), None);
        let network = PauseReason::Network { since: at(0), message: "no\u{1b}way".to_owned() };
        let said = paused(&[PauseReason::NoSession, network, PauseReason::User]).unwrap();
        assert_eq!(
            said,
            "Nothing is sent or fetched: nobody is signed in: run `splitdrop login`; no way to the server since \
             1970-01-01 00:00:00Z, it is tried again by itself (no\\u{1b}way); paused by you: run `splitdrop resume`"
        );
    }

    #[test]
    fn without_room_what_is_sent_goes_on() {
        let no_room = PauseReason::NoRoom { free: 12_300_000, kept: 104_857_600 };
        let why = "12.3 MB are free on the disk, and 104.8 MB are kept: make room, and it goes on";
        assert_eq!(paused(std::slice::from_ref(&no_room)).unwrap(), format!("Nothing is fetched: {why}"));
        let also = paused(&[no_room, PauseReason::User]).unwrap();
        assert!(also.starts_with(&format!("Nothing is sent or fetched: {why}; ")), "{also}");
        let some = PauseReason::NoRoom { free: 104_857_601, kept: 104_857_600 };
        assert!(paused(&[some]).unwrap().starts_with("Not all is fetched: 104.8 MB are free"), "what fits comes");
    }

    #[test]
    fn what_dom0_would_be_asked_about_says_how_to_have_it_asked() {
        let said = paused(&[PauseReason::Dom0]).unwrap();
        assert_eq!(
            said,
            "Not all is fetched: dom0 would ask about another call for messages and replies: run `splitdrop refresh`, \
             and answer it there"
        );
        let with_files = paused(&[PauseReason::NoRoom { free: 1, kept: 2 }, PauseReason::Dom0]).unwrap();
        assert!(with_files.starts_with("Nothing is fetched: "), "{with_files}");
    }

    #[test]
    fn lanes_say_only_what_there_is() {
        let lane =
            |waiting, running, failed| super::lane(LaneCounts { waiting, running, failed }, "being fetched", "failed");
        assert_eq!(lane(0, 0, 0), None);
        assert_eq!(lane(312, 4, 1).unwrap(), "312 waiting, 4 of them being fetched, 1 failed");
        assert_eq!((lane(2, 0, 0).unwrap(), lane(0, 0, 2).unwrap()), ("2 waiting".to_owned(), "2 failed".to_owned()));
    }

    #[test]
    fn each_step_is_a_line() {
        let line = |step| change(&DownloadChange { source: source_id(1), item: item(1), step });
        let failure = || Failure { kind: FailureKind::ServerFault, message: "no\nway".to_owned() };
        let about = "Download of submission 9b040001 of 3f2a6f8e";
        for (step, said) in [
            (DownloadStep::Started, "started"),
            (DownloadStep::Progress { received: 500, total: Some(1000) }, "50%, 500 B of 1.0 kB"),
            (DownloadStep::Progress { received: 500, total: None }, "500 B are there"),
            (DownloadStep::Stored { size: 1000 }, "all 1.0 kB are there"),
            (
                DownloadStep::Postponed { failure: failure(), next_try: Some(at(0)) },
                "not through, next try at 1970-01-01 00:00:00Z: no\\u{a}way",
            ),
            (DownloadStep::Failed(failure()), "failed: no\\u{a}way"),
            (DownloadStep::Stopped, "stopped"),
        ] {
            assert_eq!(line(step), format!("{about}: {said}.\n"));
        }
    }

    #[test]
    fn a_line_of_progress_promises_only_what_is_known() {
        let name = Designation::try_new("a\u{202e}b").unwrap();
        let line = |designation, rate| {
            progress(&Progress { item: item(1), designation, received: 5_000, total: 10_000, rate })
        };
        assert_eq!(line(None, None), "9b040001   50%  5.0 kB of 10.0 kB");
        assert_eq!(line(None, Some(0)), "9b040001   50%  5.0 kB of 10.0 kB  0 B/s");
        assert_eq!(line(Some(&name), Some(100)), "9b040001   50%  5.0 kB of 10.0 kB  100 B/s  50 s left  a\\u{202e}b");
    }
}

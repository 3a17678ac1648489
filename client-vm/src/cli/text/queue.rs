//! The queue in words.

use control::{
    ActChange, ActId, ActKind, ActState, ActStep, Deal, DownloadEntry, PauseReason, QueueCounts, QueueEntry,
    QueueStatus, Status,
};
use protocol::value::Timestamp;

use super::super::safe_text::{sanitized, sanitized_within};
use super::amount::{ago, until};
use super::download::{downloads, lane, paused, waiting_for_call};
use super::{NAME_COLUMNS, counted, outcome, reading, short_id, short_time, table};

/// Why nothing goes on, if that is so; the acts and then the downloads that wait, are under way, or were refused or have
/// failed; how much of each lane there is; when the last and the next sync are.
pub(in crate::cli) fn queue(status: &Status, acts: &[QueueEntry], entries: &[DownloadEntry], now: Timestamp) -> String {
    let queue = &status.queue;
    let mut parts: Vec<_> = paused(&queue.paused).map(|why| format!("{why}.\n")).into_iter().collect();
    parts.extend(waiting_for_call(queue).map(|waiting| format!("Calls: {waiting}.\n")));
    let lanes = lanes(queue);
    if acts.is_empty() && entries.is_empty() && lanes.is_empty() {
        parts.push("Nothing waits.\n".to_owned());
    }
    if !acts.is_empty() {
        parts.push(table_of_acts(acts, now));
    }
    if !entries.is_empty() {
        parts.push(downloads(entries));
    }
    parts.push(lanes + &syncs(status, now));
    parts.join("\n")
}

/// A line for each lane of which something waits, runs or has failed.
fn lanes(queue: &QueueStatus) -> String {
    let lines = [
        ("Acts", lane(queue.acts, "being sent", "refused")),
        ("Messages and replies to be fetched", lane(queue.messages, "being fetched", "failed")),
        ("Files to be fetched", lane(queue.files, "being fetched", "failed")),
        ("To be decrypted", reading::counts(queue.decrypt)),
    ];
    lines.into_iter().filter_map(|(what, counts)| counts.map(|counts| format!("{what}: {counts}.\n"))).collect()
}

/// When the last sync was, and when the next one is.
fn syncs(status: &Status, now: Timestamp) -> String {
    let last = match &status.last_sync {
        Some(last) => format!("Last sync: {}, {}.", ago(last.ended, now), outcome(last)),
        None => "Last sync: never.".to_owned(),
    };
    match (status.running_sync, status.next_sync) {
        (Some(_), _) => format!("{last} One is under way.\n"),
        (None, Some(next)) => format!("{last} Next: {}.\n", until(next, now)),
        (None, None) => format!("{last}\n"),
    }
}

/// The user has paused the queue.
pub(in crate::cli) fn paused_by_user() -> String {
    "Paused: nothing is sent or fetched until `splitdrop resume`.\n".to_owned()
}

/// The user has let the queue go on. There may be other reasons why it does not.
pub(in crate::cli) fn resumed(reasons: &[PauseReason]) -> String {
    match paused(reasons) {
        Some(why) => format!("No longer paused by you. {why}.\n"),
        None => "The queue goes on.\n".to_owned(),
    }
}

/// What waits, is being sent or was refused, and what can be done where only a person can go on.
fn table_of_acts(queue: &[QueueEntry], now: Timestamp) -> String {
    let mut rows =
        vec![["ACT", "WHAT", "SOURCE", "ITEMS", "STATE", "ATTEMPTS", "NEXT TRY", "REASON"].map(str::to_owned)];
    for entry in queue {
        rows.push([
            entry.act.0.to_string(),
            what(entry.kind).to_owned(),
            match &entry.designation {
                Some(designation) => sanitized_within(designation.as_str(), NAME_COLUMNS),
                None => short_id(entry.source.as_str()),
            },
            match entry.kind {
                ActKind::Seen | ActKind::DeleteItem => entry.objects.to_string(),
                ActKind::Star | ActKind::Unstar | ActKind::DeleteSource | ActKind::Reply => String::new(),
            },
            state(entry, now),
            entry.attempts.to_string(),
            entry.next_try.map(short_time).unwrap_or_default(),
            entry.reason.as_deref().map(sanitized).unwrap_or_default(),
        ]);
    }
    let mut text = table(&rows);
    let own = |state: &ActState| queue.iter().any(|entry| entry.own && entry.state == *state);
    if own(&ActState::Refused) {
        text.push_str(
            "\nWhat was refused has no effect. `splitdrop retry ACT` tries it once more, `splitdrop dismiss ACT` \
             forgets it.\n",
        );
    }
    if own(&ActState::NotDeleted) {
        text.push_str(
            "\nThe server confirmed a deletion and lists what was deleted all the same. `splitdrop retry ACT` deletes \
             it once more,\n`splitdrop restore ACT` gives the deletion up and shows it again.\n",
        );
    }
    text
}

/// What was done about acts.
pub(in crate::cli) fn dealt(deal: Deal, acts: &[ActId]) -> String {
    let these = match acts {
        [] => {
            return match deal {
                Deal::Retry => "There is nothing to try again.\n",
                Deal::Cancel => "There is nothing that could be taken back.\n",
                Deal::Dismiss => "Nothing was refused.\n",
                Deal::Restore => "There is no deletion to give up.\n",
            }
            .to_owned();
        }
        [act] => format!("act {}", act.0),
        more => format!("{} acts", more.len()),
    };
    match deal {
        Deal::Retry => format!("Trying {these} again.\n"),
        Deal::Cancel => format!("Took {these} back.\n"),
        Deal::Dismiss => format!("Dismissed {these}.\n"),
        Deal::Restore => format!("Gave up {these}: what the server lists is shown again.\n"),
    }
}

/// How much waits, of which so many are being sent, in one line; none when nothing does.
pub(super) fn counts(counts: &QueueCounts, running: u64) -> Option<String> {
    let QueueCounts { waiting, of_others, refused, not_deleted } = *counts;
    let parts = [
        (waiting, "waiting"),
        (running, "being sent"),
        (of_others, "waiting of other journalists"),
        (refused, "refused"),
        (not_deleted, "not deleted by the server"),
    ];
    let parts: Vec<_> =
        parts.into_iter().filter(|(count, _)| *count > 0).map(|(count, words)| format!("{count} {words}")).collect();
    if parts.is_empty() { None } else { Some(format!("{}; `splitdrop queue` lists them", parts.join(", "))) }
}

/// A step in the life of an act.
pub(super) fn change(change: &ActChange) -> String {
    let ActChange { act, kind, source, objects, step } = change;
    let whose = short_id(source.as_str());
    let about = match kind {
        ActKind::Star => format!("star {whose}"),
        ActKind::Unstar => format!("unstar {whose}"),
        ActKind::DeleteSource => format!("delete source {whose}"),
        ActKind::Reply => format!("a reply to {whose}"),
        ActKind::Seen => format!("mark {} of {whose} as seen", counted(*objects, "item")),
        ActKind::DeleteItem => format!("delete {} of {whose}", counted(*objects, "item")),
    };
    let step = match step {
        ActStep::Taken => "taken".to_owned(),
        ActStep::Started => "being sent".to_owned(),
        ActStep::Confirmed => "the server has done it".to_owned(),
        ActStep::Settled => match kind {
            ActKind::DeleteSource | ActKind::DeleteItem => "the server lists it no more".to_owned(),
            ActKind::Star | ActKind::Unstar | ActKind::Seen | ActKind::Reply => "the server shows it".to_owned(),
        },
        ActStep::Refused(failure) => format!("refused: {}", sanitized(&failure.message)),
        ActStep::Postponed { failure, next_try } => postponed(&failure.message, *next_try),
        ActStep::Dealt(Deal::Retry) => "to be tried again".to_owned(),
        ActStep::Dealt(Deal::Cancel) => "taken back".to_owned(),
        ActStep::Dealt(Deal::Dismiss) => "dismissed".to_owned(),
        ActStep::Dealt(Deal::Restore) => "given up, and shown again".to_owned(),
        ActStep::NotDeleted => "the server has confirmed it and not done it: `splitdrop queue`".to_owned(),
        ActStep::Gone => "not done: what it is about is no longer on the server".to_owned(),
        ActStep::ListedAgain => "the server lists again what it is about: it is still to be done".to_owned(),
        ActStep::NotListed => "the server has confirmed it and does not list it: `splitdrop queue`".to_owned(),
    };
    format!("Act {}, {about}: {step}.\n", act.0)
}

pub(super) fn postponed(reason: &str, next_try: Option<Timestamp>) -> String {
    let reason = sanitized(reason);
    match next_try {
        Some(at) => format!("not through, next try at {}: {reason}", short_time(at)),
        None => format!("not through: {reason}"),
    }
}

fn what(kind: ActKind) -> &'static str {
    match kind {
        ActKind::Star => "star",
        ActKind::Unstar => "unstar",
        ActKind::Seen => "mark seen",
        ActKind::DeleteSource => "delete source",
        ActKind::DeleteItem => "delete items",
        ActKind::Reply => "reply",
    }
}

/// How far an act has come. Acts of others go on when they are signed in here.
fn state(entry: &QueueEntry, now: Timestamp) -> String {
    if entry.own {
        return match entry.state {
            ActState::Waiting => "waiting".to_owned(),
            ActState::Grace => in_grace(entry, now),
            ActState::Opening => "waiting for the proxy VM or dom0".to_owned(),
            ActState::Running => "being sent".to_owned(),
            ActState::Unconfirmed => "unconfirmed".to_owned(),
            ActState::Held => format!("needs you: run `splitdrop retry {}`", entry.act.0),
            ActState::Refused => "refused".to_owned(),
            ActState::NotDeleted => "the server has not deleted it".to_owned(),
        };
    }
    let name = match &entry.username {
        Some(username) => sanitized_within(username.as_str(), NAME_COLUMNS),
        None => entry.journalist.to_string(),
    };
    match entry.state {
        ActState::Waiting | ActState::Grace => format!("not sent, by {name}"),
        ActState::Opening | ActState::Running => format!("being sent, by {name}"),
        ActState::Unconfirmed => format!("unconfirmed, by {name}"),
        ActState::Held => format!("needs {name}"),
        ActState::Refused => format!("refused, an act of {name}"),
        ActState::NotDeleted => format!("the server has not deleted it, an act of {name}"),
    }
}

/// For how long a deletion can still be taken back, and how.
fn in_grace(entry: &QueueEntry, now: Timestamp) -> String {
    let left = entry.next_try.map(|due| due.get().saturating_sub(now.get()).div_ceil(1_000_000));
    let when = left.map(|seconds| format!(" in {seconds} s")).unwrap_or_default();
    format!("being deleted{when}, `splitdrop undo {}` takes it back", entry.act.0)
}

#[cfg(test)]
mod tests {
    use control::{Failure, FailureKind, LaneCounts};
    use protocol::value::{Designation, Username};

    use control::DownloadState;

    use super::super::super::samples::{at, download, entry, source_id, status};
    use super::*;

    /// What is said of the syncs of a daemon that was just started.
    const NO_SYNC: &str = "Last sync: never.\n";

    /// The queue of acts alone.
    fn queue(acts: &[QueueEntry]) -> String {
        super::queue(&status(), acts, &[], at(0))
    }

    fn with(queue: QueueStatus) -> Status {
        Status { queue, ..status() }
    }

    fn paused_for(reason: PauseReason) -> Status {
        with(QueueStatus { paused: vec![reason], ..QueueStatus::default() })
    }

    #[test]
    fn each_lane_is_counted_and_the_syncs_are_said() {
        let lane = |waiting| LaneCounts { waiting, running: 1, failed: 0 };
        let queue = QueueStatus {
            acts: LaneCounts { failed: 2, ..lane(3) },
            messages: lane(4),
            files: lane(5),
            ..QueueStatus::default()
        };
        let soon = Status { next_sync: Some(at(12)), ..with(queue) };
        assert_eq!(
            super::queue(&soon, &[], &[], at(0)),
            "Acts: 3 waiting, 1 of them being sent, 2 refused.\n\
             Messages and replies to be fetched: 4 waiting, 1 of them being fetched.\n\
             Files to be fetched: 5 waiting, 1 of them being fetched.\n\
             Last sync: never. Next: in 12 s.\n"
        );
    }

    #[test]
    fn what_is_to_be_decrypted_is_counted() {
        let decrypt = LaneCounts { waiting: 3, running: 2, failed: 1 };
        let text = super::queue(&with(QueueStatus { decrypt, ..QueueStatus::default() }), &[], &[], at(0));
        let said = "To be decrypted: 3 waiting, 2 of them being decrypted, 1 cannot be decrypted.\n";
        assert_eq!(text, format!("{said}{NO_SYNC}"));
    }

    #[test]
    fn a_reply_is_an_act_like_others() {
        let text = queue(&[QueueEntry { kind: ActKind::Reply, state: ActState::Unconfirmed, ..entry(3) }]);
        let row: Vec<_> = text.lines().nth(1).unwrap().split_whitespace().collect();
        assert_eq!(row, ["3", "reply", "candid", "marmot", "unconfirmed", "0"], "{text}");
        let step = ActStep::Confirmed;
        let said = change(&ActChange { act: ActId(12), kind: ActKind::Reply, source: source_id(1), objects: 1, step });
        assert_eq!(said, "Act 12, a reply to 3f2a6f8e: the server has done it.\n");
    }

    #[test]
    fn an_empty_queue_says_so() {
        assert_eq!(queue(&[]), format!("Nothing waits.\n\n{NO_SYNC}"));
    }

    #[test]
    fn a_paused_queue_says_why_before_all_else() {
        let text = super::queue(
            &paused_for(PauseReason::User),
            &[entry(3)],
            &[download(1, DownloadState::Running { received: 0 })],
            at(0),
        );
        let begins: Vec<_> = text.lines().map(|line| line.split_whitespace().next().unwrap_or_default()).collect();
        assert_eq!(begins, ["Nothing", "", "ACT", "3", "", "FETCH", "file", "", "Last"], "{text}");
        assert!(text.starts_with("Nothing is sent or fetched: paused by you: run `splitdrop resume`.\n\n"), "{text}");
        let text = super::queue(&paused_for(PauseReason::NoSession), &[], &[], at(0));
        assert!(text.contains("\n\nNothing waits.\n"), "{text}");
        assert_eq!(resumed(&[]), "The queue goes on.\n");
        assert!(resumed(&[PauseReason::NoSession]).contains("splitdrop login"));
    }

    #[test]
    fn the_queue_says_what_waits_for_what() {
        let held = QueueEntry {
            kind: ActKind::DeleteItem,
            objects: 5,
            state: ActState::Held,
            reason: Some("dom0 refused\nit".to_owned()),
            ..entry(7)
        };
        let tried = QueueEntry {
            kind: ActKind::Seen,
            objects: 3,
            designation: None,
            state: ActState::Unconfirmed,
            attempts: 2,
            next_try: Some(at(60)),
            ..entry(9)
        };
        let text = queue(&[entry(3), held, tried]);
        let cells =
            |line: &str| line.split("  ").map(str::trim).filter(|cell| !cell.is_empty()).collect::<Vec<_>>().join("|");
        let lines: Vec<_> = text.lines().map(cells).collect();
        assert_eq!(
            lines,
            [
                "ACT|WHAT|SOURCE|ITEMS|STATE|ATTEMPTS|NEXT TRY|REASON",
                "3|star|candid marmot|waiting|0",
                "7|delete items|candid marmot|5|needs you: run `splitdrop retry 7`|0|dom0 refused\\u{a}it",
                "9|mark seen|3f2a6f8e|3|unconfirmed|2|1970-01-01 00:01:00Z",
                "",
                NO_SYNC.trim_end(),
            ]
        );
    }

    #[test]
    fn acts_of_others_carry_their_names_and_no_hints() {
        let other = |state, username: Option<&str>| QueueEntry {
            own: false,
            state,
            username: username.map(|name| Username::try_new(name).unwrap()),
            ..entry(3)
        };
        assert!(queue(&[other(ActState::Waiting, Some("marlow"))]).contains("not sent, by marlow"));
        let nameless = queue(&[other(ActState::Unconfirmed, None)]);
        assert!(nameless.contains("unconfirmed, by 7d1c0000-0000-4000-8000-000000000001"), "{nameless}");
        for state in [ActState::Held, ActState::Refused, ActState::NotDeleted] {
            let text = queue(&[other(state, Some("marlow"))]);
            assert!(text.contains("marlow") && !text.contains("splitdrop"), "{text}");
        }
    }

    #[test]
    fn a_deletion_that_waits_says_for_how_long_it_can_be_taken_back() {
        let entry = QueueEntry { kind: ActKind::DeleteSource, state: ActState::Grace, ..entry(3) };
        let text = |next_try| queue(&[QueueEntry { next_try, ..entry.clone() }]);
        let due = Timestamp::try_new(7_000_001).ok();
        assert!(text(due).contains("being deleted in 8 s, `splitdrop undo 3` takes it back"), "{}", text(due));
        // The clock was set back, and the daemon has not looked yet.
        assert!(text(None).contains("being deleted, `splitdrop undo 3`"), "{}", text(None));
        let others = queue(&[QueueEntry { own: false, ..entry.clone() }]);
        assert!(others.contains("not sent, by") && !others.contains("undo"), "{others}");
    }

    #[test]
    fn hints_stand_where_they_help() {
        let text = |state| queue(&[QueueEntry { state, ..entry(3) }]);
        assert!(text(ActState::Refused).contains("splitdrop dismiss ACT"));
        assert!(text(ActState::NotDeleted).contains("splitdrop restore ACT"));
        for state in [ActState::Waiting, ActState::Running, ActState::Unconfirmed] {
            assert!(!text(state.clone()).contains("splitdrop"), "{state:?}");
        }
    }

    #[test]
    fn hostile_text_stays_harmless_in_the_queue() {
        let hostile = QueueEntry {
            designation: Some(Designation::try_new("a\u{202e}b").unwrap()),
            reason: Some("no\u{1b}[2J".to_owned()),
            ..entry(3)
        };
        let text = queue(&[hostile]);
        assert!(text.contains("a\\u{202e}b") && text.contains("no\\u{1b}[2J"), "{text}");
    }

    #[test]
    fn deals_say_what_was_done() {
        assert_eq!(dealt(Deal::Retry, &[ActId(12)]), "Trying act 12 again.\n");
        assert_eq!(dealt(Deal::Cancel, &[ActId(12), ActId(13)]), "Took 2 acts back.\n");
        assert_eq!(dealt(Deal::Dismiss, &[]), "Nothing was refused.\n");
    }

    #[test]
    fn only_what_is_there_is_counted() {
        assert_eq!(counts(&QueueCounts::default(), 0), None);
        let some = QueueCounts { waiting: 2, of_others: 0, refused: 1, not_deleted: 0 };
        assert_eq!(counts(&some, 1).unwrap(), "2 waiting, 1 being sent, 1 refused; `splitdrop queue` lists them");
    }

    #[test]
    fn each_step_is_a_line() {
        let failure = Failure { kind: FailureKind::Unreachable, message: "no\nway".to_owned() };
        let line =
            |kind, objects, step| change(&ActChange { act: ActId(12), kind, source: source_id(1), objects, step });
        assert_eq!(line(ActKind::Star, 1, ActStep::Taken), "Act 12, star 3f2a6f8e: taken.\n");
        assert_eq!(
            line(ActKind::Seen, 5, ActStep::Postponed { failure: failure.clone(), next_try: Some(at(0)) }),
            "Act 12, mark 5 items of 3f2a6f8e as seen: not through, next try at 1970-01-01 00:00:00Z: no\\u{a}way.\n"
        );
        assert_eq!(
            line(ActKind::DeleteItem, 1, ActStep::Refused(failure)),
            "Act 12, delete 1 item of 3f2a6f8e: refused: no\\u{a}way.\n"
        );
    }
}

//! Replies: sent once, by whoever wrote them, and never lost.

mod lists;

use std::time::Duration;

use control::{ActState, Deal, OutgoingReply};

use super::super as outbox;
use super::hands::with_sources;
use super::machine::{Ending, Machine, Opening};
use super::server::By;
use super::world::{Itm, Src, What, Who, Wish, new_store};
use crate::store::{StoreError, view};
use crate::sync::Plan;

const SOURCE: Src = Src(0);
const OTHER: Src = Src(1);
const UNKNOWN: Ending = Ending::Fault { retry_after: None };

fn first() -> Itm {
    Itm::answer(0)
}

fn reply() -> Wish {
    Wish::Reply(SOURCE, first())
}

/// The replies to the first source that are not listed, as `viewer` is told of them.
fn outgoing(machine: &mut Machine<'_>, viewer: Who) -> Vec<OutgoingReply> {
    let (now, lane) = (machine.time(), machine.lane());
    machine.as_seen_by(viewer, |transaction| outbox::outgoing(transaction, SOURCE.id(), now, &lane))
}

/// What the listed reply says, where its text is held.
fn listed(machine: &mut Machine<'_>, reply: Itm) -> Option<String> {
    machine.read(|transaction| view::text_of(transaction, SOURCE.id(), reply.name()))
}

fn text(reply: Itm) -> String {
    reply.text().as_str().to_owned()
}

/// Who has stored what at the server.
fn stored(machine: &Machine<'_>) -> Vec<(Who, Itm)> {
    machine.server.answered.iter().map(|(_, who, what)| (*who, what.reply().unwrap())).collect()
}

fn rows(machine: &mut Machine<'_>) -> Vec<(i64, String)> {
    machine.check_replies();
    machine.rows()
}

fn states(states: &[(i64, &str)]) -> Vec<(i64, String)> {
    states.iter().map(|(row, state)| (*row, (*state).to_owned())).collect()
}

#[test]
fn r1_a_reply_is_sent_and_what_it_says_is_held_once_it_is_listed() {
    let mut store = new_store();
    let mut machine = with_sources(&mut store, &[1]);
    machine.act(&reply());
    assert_eq!(machine.states(), [(1, ActState::Waiting)]);
    let told = outgoing(&mut machine, Who::Anna).remove(0);
    assert_eq!((told.reply, told.own, told.state), (first().reply_id(), true, Some(ActState::Waiting)));
    assert_eq!((told.journalist, told.text, told.reason), (Who::Anna.id(), first().text(), None));
    machine.send(0);
    // Confirmed, and shown until the server lists it.
    let told = outgoing(&mut machine, Who::Ben).remove(0);
    assert_eq!((told.own, told.state, told.text), (false, None, first().text()));
    assert_eq!(listed(&mut machine, first()), None);
    machine.sync();
    assert!(rows(&mut machine).is_empty());
    assert!(outgoing(&mut machine, Who::Anna).is_empty());
    assert_eq!(listed(&mut machine, first()), Some(text(first())));
    assert_eq!(stored(&machine), [(Who::Anna, first())]);
}

#[test]
fn r1_what_failed_before_it_was_sent_is_sent_again_at_once_or_taken_back() {
    let mut store = new_store();
    let mut machine = with_sources(&mut store, &[1]);
    machine.act(&reply());
    machine.send_in_vain(Ending::NoEffect);
    assert_eq!(rows(&mut machine), states(&[(1, "pending")]));
    assert_eq!(machine.due(), (1, None));
    machine.deal(Deal::Cancel, 1);
    assert!(rows(&mut machine).is_empty());
    assert_eq!(machine.draft_of(Who::Anna, SOURCE), Some(text(first())));
}

#[test]
fn r1_stored_and_the_answer_lost_is_settled_by_the_next_snapshot() {
    let mut store = new_store();
    let mut machine = with_sources(&mut store, &[1]);
    machine.act(&reply());
    machine.attempt();
    machine.perform_last();
    machine.end_last(UNKNOWN);
    // Nobody knows, and nothing is sent, however much time passes.
    machine.pass(Duration::from_secs(86_400));
    assert_eq!(machine.due(), (0, None));
    assert_eq!(machine.states(), [(1, ActState::Unconfirmed)]);
    machine.sync();
    assert!(rows(&mut machine).is_empty());
    assert_eq!(listed(&mut machine, first()), Some(text(first())));
    assert_eq!(stored(&machine), [(Who::Anna, first())]);
}

#[test]
fn r1_not_stored_and_nobody_knows_waits_for_a_snapshot_asked_for_after_the_attempt() {
    let mut store = new_store();
    let mut machine = with_sources(&mut store, &[1]);
    machine.act(&reply());
    machine.attempt();
    // Asked for before the attempt has ended: it may have looked before the reply was stored.
    machine.ask_snapshot();
    machine.end_last(UNKNOWN);
    machine.list_sources();
    machine.list_items();
    machine.apply();
    assert_eq!(rows(&mut machine), states(&[(1, "attempted")]));
    assert_eq!(machine.due(), (0, None));
    machine.sync();
    assert_eq!(rows(&mut machine), states(&[(1, "pending")]));
    // With its own wait, and under the same id.
    assert_eq!(machine.due(), (0, Some(Duration::from_secs(5))));
    machine.pass(Duration::from_secs(5));
    machine.send(0);
    machine.sync();
    assert!(rows(&mut machine).is_empty());
    assert_eq!(stored(&machine), [(Who::Anna, first())]);
}

#[test]
fn r1_a_user_who_wants_it_again_does_not_hurry_what_may_have_been_sent() {
    let mut store = new_store();
    let mut machine = with_sources(&mut store, &[1]);
    machine.act(&reply());
    machine.send_in_vain(UNKNOWN);
    assert_eq!(machine.deal(Deal::Retry, 1), Some(1));
    assert_eq!(machine.deal(Deal::Cancel, 1), None);
    assert_eq!(machine.due(), (0, None));
    machine.sync();
    // The user's word has taken the wait away.
    assert_eq!(machine.due(), (1, None));
}

#[test]
fn r1_while_it_is_being_sent_no_snapshot_takes_it_for_unsent() {
    let mut store = new_store();
    let mut machine = with_sources(&mut store, &[1]);
    machine.act(&reply());
    machine.attempt();
    for _ in 0..3 {
        machine.sync();
    }
    assert_eq!(rows(&mut machine), states(&[(1, "attempted")]));
    assert_eq!(machine.states(), [(1, ActState::Running)]);
    machine.perform_last();
    machine.end_last(Ending::Answered);
    assert_eq!(rows(&mut machine), states(&[(1, "confirmed")]));
}

#[test]
fn r1_listed_while_it_is_being_sent_is_sent_and_the_answer_comes_too_late() {
    for ending in [Ending::Answered, UNKNOWN, Ending::Refused, Ending::NoEffect] {
        let mut store = new_store();
        let mut machine = with_sources(&mut store, &[1]);
        machine.act(&reply());
        machine.attempt();
        machine.perform_last();
        machine.sync();
        assert!(rows(&mut machine).is_empty());
        machine.end_last(ending);
        assert!(rows(&mut machine).is_empty());
        assert_eq!(listed(&mut machine, first()), Some(text(first())));
    }
}

#[test]
fn r1_a_crash_while_it_is_being_sent_leaves_it_to_the_next_session() {
    for was_stored in [true, false] {
        let mut store = new_store();
        let mut machine = with_sources(&mut store, &[1]);
        for _ in 0..3 {
            machine.sync();
        }
        machine.act(&reply());
        machine.attempt();
        if was_stored {
            machine.perform_last();
        }
        machine.crash();
        machine.login(Who::Anna);
        assert_eq!(rows(&mut machine), states(&[(1, "attempted")]));
        assert_eq!(machine.due(), (0, None));
        machine.sync();
        if !was_stored {
            assert_eq!(rows(&mut machine), states(&[(1, "pending")]));
            machine.send(0);
            machine.sync();
        }
        assert!(rows(&mut machine).is_empty());
        assert_eq!(listed(&mut machine, first()), Some(text(first())));
        assert_eq!(stored(&machine), [(Who::Anna, first())]);
    }
}

/// The lists of a sync that was under way at the logout may be older than the attempt.
#[test]
fn r1_a_snapshot_of_the_session_before_does_not_settle_what_was_being_sent() {
    let mut store = new_store();
    let mut machine = with_sources(&mut store, &[1]);
    machine.act(&reply());
    machine.attempt();
    machine.ask_snapshot();
    machine.list_sources();
    machine.list_items();
    machine.perform_last();
    machine.login(Who::Anna);
    machine.apply();
    assert_eq!(rows(&mut machine), states(&[(1, "attempted")]));
    machine.sync();
    assert!(rows(&mut machine).is_empty());
    assert_eq!(stored(&machine), [(Who::Anna, first())]);
}

#[test]
fn r1_our_own_id_is_taken_means_that_it_was_sent() {
    let mut store = new_store();
    let mut machine = with_sources(&mut store, &[1]);
    machine.act(&reply());
    // A request that nobody remembers has come through.
    machine.server.perform(What::Reply(SOURCE, first()), By::Row(1, Who::Anna), 0);
    machine.attempt();
    machine.perform_last();
    machine.end_last(Ending::Answered);
    assert_eq!(rows(&mut machine), states(&[(1, "confirmed")]));
    assert_eq!(stored(&machine), [(Who::Anna, first())]);
}

#[test]
fn r1_what_was_refused_keeps_its_text_until_it_is_dismissed() {
    let mut store = new_store();
    let mut machine = with_sources(&mut store, &[1]);
    machine.act(&reply());
    machine.send_in_vain(Ending::Refused);
    machine.sync();
    machine.crash();
    machine.login(Who::Anna);
    let told = outgoing(&mut machine, Who::Anna).remove(0);
    assert_eq!((told.state, told.text), (Some(ActState::Refused), first().text()));
    assert_eq!(told.reason.as_deref(), Some("a reason"));
    machine.deal(Deal::Retry, 1);
    assert_eq!(machine.due(), (1, None));
    machine.send_in_vain(Ending::Refused);
    machine.deal(Deal::Dismiss, 1);
    assert!(rows(&mut machine).is_empty());
    assert!(outgoing(&mut machine, Who::Anna).is_empty());
    assert_eq!(machine.draft_of(Who::Anna, SOURCE), None);
}

#[test]
fn r1_a_refusal_by_dom0_is_for_one_reply_and_its_retry_asks_again() {
    let mut store = new_store();
    let mut machine = with_sources(&mut store, &[1, 1]);
    machine.act(&reply());
    machine.act(&Wish::Reply(OTHER, Itm::answer(1)));
    machine.choose(0, Opening::Refused);
    assert_eq!(rows(&mut machine), states(&[(1, "refused"), (2, "pending")]));
    machine.deal(Deal::Retry, 1);
    machine.send(0);
    machine.send(0);
    assert_eq!(stored(&machine), [(Who::Anna, first()), (Who::Anna, Itm::answer(1))]);
}

#[test]
fn r1_replies_to_one_source_go_one_by_one_in_their_order() {
    let mut store = new_store();
    let mut machine = with_sources(&mut store, &[1, 1]);
    for number in 0..3 {
        machine.act(&Wish::Reply(SOURCE, Itm::answer(number)));
    }
    machine.act(&Wish::Reply(OTHER, Itm::answer(3)));
    assert_eq!(machine.ready().iter().map(|batch| batch.rows.len()).collect::<Vec<_>>(), [1, 1]);
    machine.send_in_vain(UNKNOWN);
    // What may have been sent holds up what was written later, and nobody else.
    assert_eq!(machine.ready()[0].source, OTHER.id());
    assert_eq!(machine.due().0, 1);
    machine.sync();
    machine.pass(Duration::from_secs(5));
    while machine.due().0 > 0 {
        machine.send(0);
    }
    let sent: Vec<_> = stored(&machine).into_iter().map(|(_, reply)| reply).collect();
    let to_source: Vec<_> = sent.into_iter().filter(|reply| *reply != Itm::answer(3)).collect();
    assert_eq!(to_source, [0, 1, 2].map(Itm::answer));
}

#[test]
fn r1_the_same_reply_is_taken_once() {
    let mut store = new_store();
    let mut machine = with_sources(&mut store, &[1]);
    machine.act(&reply());
    machine.act(&reply());
    machine.send(0);
    machine.act(&reply());
    machine.sync();
    machine.act(&reply());
    assert!(rows(&mut machine).is_empty());
    assert_eq!(stored(&machine), [(Who::Anna, first())]);
}

/// The one case in which a source may get a reply twice: it cannot be told from one that was never stored.
#[test]
fn r1_a_reply_that_a_colleague_has_deleted_before_the_next_snapshot_is_sent_again() {
    let mut store = new_store();
    let mut machine = with_sources(&mut store, &[1]);
    machine.act(&reply());
    machine.attempt();
    machine.perform_last();
    machine.end_last(UNKNOWN);
    machine.colleague(What::DeleteItem(SOURCE, first()));
    machine.sync();
    assert_eq!(rows(&mut machine), states(&[(1, "pending")]));
    machine.pass(Duration::from_secs(5));
    machine.send(0);
    machine.sync();
    assert_eq!(stored(&machine).len(), 2);
    machine.server.assert_no_doubles();
    assert_eq!(listed(&mut machine, first()), Some(text(first())));
}

/// A confirmed one is not: it ends.
#[test]
fn r1_a_confirmed_reply_that_a_colleague_has_deleted_is_not_sent_again() {
    let mut store = new_store();
    let mut machine = with_sources(&mut store, &[1]);
    machine.act(&reply());
    machine.attempt();
    machine.perform_last();
    // Asked for before the answer, and listed before it was stored: that it is not there says nothing.
    machine.ask_snapshot();
    machine.colleague(What::DeleteItem(SOURCE, first()));
    machine.end_last(Ending::Answered);
    machine.list_sources();
    machine.list_items();
    machine.apply();
    assert_eq!(rows(&mut machine), states(&[(1, "confirmed")]));
    machine.sync();
    // The machine compares what is told: not listed.
    assert_eq!(rows(&mut machine), states(&[(1, "refused")]));
    let told = outgoing(&mut machine, Who::Anna).remove(0);
    assert_eq!((told.state, told.text), (Some(ActState::Refused), first().text()));
    assert!(told.reason.unwrap().contains("does not list it"));
    for _ in 0..4 {
        machine.sync();
        machine.pass(Duration::from_secs(3_600));
        assert_eq!(machine.due(), (0, None));
    }
    assert_eq!(stored(&machine).len(), 1);
    machine.deal(Deal::Dismiss, 1);
    assert!(rows(&mut machine).is_empty());
}

/// Unreadable is not absent: it was stored, and what it says is not lost.
#[test]
fn r1_a_reply_that_is_listed_and_cannot_be_read_was_sent_and_keeps_its_text() {
    for attempted in [true, false] {
        let mut store = new_store();
        let mut machine = with_sources(&mut store, &[1]);
        machine.act(&reply());
        machine.attempt();
        machine.end_last(if attempted { UNKNOWN } else { Ending::NoEffect });
        let (now, id) = (machine.time(), first().reply_id());
        let effects = machine
            .write(|transaction| {
                transaction.execute(
                    "INSERT INTO server_reply (id, digest, unreadable) VALUES (?1, zeroblob(32), 'order')",
                    [id.as_str()],
                )?;
                outbox::after_snapshot(transaction, 90, now, Duration::from_secs(3_600), &Plan::default())
            })
            .unwrap();
        assert_eq!(effects.changes.len(), 1);
        assert!(effects.sources.contains(&SOURCE.id()));
        let told = outgoing(&mut machine, Who::Anna).remove(0);
        assert_eq!((told.state, told.text), (None, first().text()));
        // Again unreadable, and readable at last.
        let effects = machine
            .write(|transaction| {
                outbox::after_snapshot(transaction, 91, now, Duration::from_secs(3_600), &Plan::default())
            })
            .unwrap();
        assert!(effects.changes.is_empty());
        assert_eq!(machine.rows(), states(&[(1, "confirmed")]));
        machine
            .write(|transaction| {
                transaction.execute(
                    "UPDATE server_reply SET unreadable = NULL, source_id = ?2, item_order = 9, size_bytes = 1
                     WHERE id = ?1",
                    [id.as_str(), SOURCE.id().as_str()],
                )?;
                outbox::after_snapshot(transaction, 92, now, Duration::from_secs(3_600), &Plan::default())
            })
            .unwrap();
        assert!(machine.rows().is_empty());
        assert_eq!(listed(&mut machine, first()), Some(text(first())));
    }
}

/// A list that shows our reply in another conversation proves that it was sent, and takes nothing of its text.
#[test]
fn r1_a_reply_that_is_listed_under_another_source_was_sent_and_keeps_its_text() {
    let mut store = new_store();
    let mut machine = with_sources(&mut store, &[1, 1]);
    machine.act(&reply());
    machine.attempt();
    machine.end_last(UNKNOWN);
    let (now, id) = (machine.time(), first().reply_id());
    let list = |transaction: &rusqlite::Transaction<'_>, source: Src, number| {
        transaction.execute(
            "INSERT OR REPLACE INTO server_reply (id, digest, source_id, item_order, size_bytes)
             VALUES (?1, zeroblob(32), ?2, 9, 1)",
            [id.as_str(), source.id().as_str()],
        )?;
        outbox::after_snapshot(transaction, number, now, Duration::from_secs(3_600), &Plan::default())
    };
    machine.write(|transaction| list(transaction, OTHER, 90)).unwrap();
    assert_eq!(machine.rows(), states(&[(1, "confirmed")]));
    assert_eq!(outgoing(&mut machine, Who::Anna).remove(0).text, first().text());
    machine.write(|transaction| list(transaction, SOURCE, 91)).unwrap();
    assert!(machine.rows().is_empty());
    assert_eq!(listed(&mut machine, first()), Some(text(first())));
}

#[test]
fn r2_after_a_restart_a_reply_is_due_for_its_journalist_and_shown_to_others_as_not_sent() {
    let mut store = new_store();
    let mut machine = with_sources(&mut store, &[1]);
    machine.act(&reply());
    machine.crash();
    machine.login(Who::Ben);
    assert_eq!(machine.due(), (0, None));
    let told = outgoing(&mut machine, Who::Ben).remove(0);
    assert_eq!((told.own, told.journalist, told.state), (false, Who::Anna.id(), Some(ActState::Waiting)));
    machine.crash();
    machine.login(Who::Anna);
    assert_eq!(machine.due(), (1, None));
    assert!(outgoing(&mut machine, Who::Anna)[0].own);
}

#[test]
fn q4_a_reply_is_settled_by_another_journalists_snapshots_and_never_sent_by_them() {
    for was_stored in [true, false] {
        let mut store = new_store();
        let mut machine = with_sources(&mut store, &[1]);
        machine.act(&reply());
        machine.attempt();
        if was_stored {
            machine.perform_last();
        }
        machine.login(Who::Ben);
        let told = outgoing(&mut machine, Who::Ben).remove(0);
        assert_eq!((told.own, told.journalist, told.state), (false, Who::Anna.id(), Some(ActState::Unconfirmed)));
        machine.sync();
        machine.pass(Duration::from_secs(3_600));
        assert_eq!(machine.due(), (0, None));
        let told = outgoing(&mut machine, Who::Ben);
        let told: Vec<_> = told.into_iter().map(|reply| (reply.own, reply.state)).collect();
        assert_eq!(told, if was_stored { vec![] } else { vec![(false, Some(ActState::Waiting))] });
        assert_eq!(machine.deal(Deal::Cancel, 1), None);
        machine.login(Who::Anna);
        assert_eq!(machine.due(), (usize::from(!was_stored), None));
    }
}

#[test]
fn replying_is_refused_where_the_source_is_not_there_or_on_its_way_out() {
    let mut store = new_store();
    let mut machine = with_sources(&mut store, &[1]);
    let nobody = Wish::Reply(Src(9), first());
    assert_eq!(machine.act_error(&nobody), format!("there is no source {}", Src(9).id()));
    machine.delete(SOURCE);
    assert_eq!(machine.act_error(&reply()), format!("the source {} is being deleted", SOURCE.id()));
}

/// Case D4: nothing that was written to a source is left once its deletion is confirmed. Which key it had is known until the
/// server stops listing it: restored, it is to have that one.
#[test]
fn d4_a_deleted_source_leaves_no_reply_draft_or_key() {
    let mut store = new_store();
    let mut machine = with_sources(&mut store, &[1, 1]);
    for source in [SOURCE, OTHER] {
        machine.draft(source, Some("not yet"));
    }
    machine.login(Who::Ben);
    machine.act(&reply());
    machine.act(&Wish::Reply(OTHER, Itm::answer(1)));
    machine.draft(SOURCE, Some("neither"));
    machine.login(Who::Anna);
    machine.delete(SOURCE);
    machine.send(9);
    let left = machine.read(|transaction| {
        let count = |table: &str| {
            let sql = format!("SELECT count(*), coalesce(sum(source_id = ?1), 0) FROM {table}");
            transaction
                .query_row(&sql, [SOURCE.id().as_str()], |row| Ok((row.get::<_, u32>(0)?, row.get::<_, u32>(1)?)))
        };
        let texts = "(SELECT source_id FROM outbox WHERE text IS NOT NULL)";
        let keys = "(SELECT source_id FROM local_key WHERE armored <> '' OR offered_armored <> '')";
        Ok([count("local_draft")?, count(keys)?, count(texts)?, count("local_key")?])
    });
    assert_eq!(left, [(1, 0), (1, 0), (1, 0), (2, 1)]);
    machine.check_replies();
}

#[test]
fn r3_a_reply_that_is_taken_back_is_a_draft_behind_what_there_is() {
    let mut store = new_store();
    let mut machine = with_sources(&mut store, &[1]);
    machine.draft(SOURCE, Some(&text(first())));
    machine.act(&reply());
    assert_eq!(machine.draft_of(Who::Anna, SOURCE), None);
    machine.deal(Deal::Cancel, 1);
    assert_eq!(machine.draft_of(Who::Anna, SOURCE), Some(text(first())));
    assert_eq!(machine.draft_of(Who::Ben, SOURCE), None);
    machine.act(&Wish::Reply(SOURCE, Itm::answer(1)));
    machine.draft(SOURCE, Some("newer"));
    machine.deal(Deal::Cancel, 2);
    assert_eq!(machine.draft_of(Who::Anna, SOURCE), Some(format!("newer\n\n{}", text(Itm::answer(1)))));
    machine.check_replies();
}

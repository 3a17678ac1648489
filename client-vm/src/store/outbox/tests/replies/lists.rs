//! Replies, and lists that leave something out or cannot say what they have.

use super::super::world::{Damage, LeftOut};
use super::*;
use crate::sync::ListPlan;

/// A list that leaves it out, and the next one that has it.
#[test]
fn r1_a_confirmed_reply_that_is_listed_after_all_is_done() {
    let mut store = new_store();
    let mut machine = with_sources(&mut store, &[1]);
    machine.act(&reply());
    machine.send(0);
    let items = Some(LeftOut { source: SOURCE, itself: false, items: true });
    machine.sync_with(Damage { left_out: items, ..Damage::default() });
    assert_eq!(rows(&mut machine), states(&[(1, "refused")]));
    machine.sync();
    assert!(rows(&mut machine).is_empty());
    assert_eq!(listed(&mut machine, first()), Some(text(first())));
}

fn nameless_reply() -> Damage {
    Damage { nameless_item: Some(Itm(1)), ..Damage::default() }
}

/// Cases R1 and S9: the list of replies may have an entry without an id for ever.
#[test]
fn s9_three_lists_that_are_not_whole_let_a_reply_be_sent_again_and_its_source_go_on() {
    for was_stored in [false, true] {
        let mut store = new_store();
        let mut machine = with_sources(&mut store, &[1]);
        machine.act(&reply());
        machine.attempt();
        if was_stored {
            machine.perform_last();
        }
        machine.end_last(UNKNOWN);
        machine.act(&Wish::Star(vec![SOURCE]));
        let missing = |machine: &mut Machine<'_>| {
            machine.sync_with(Damage { nameless_item: Some(first()), ..Damage::default() });
        };
        for _ in 0..2 {
            missing(&mut machine);
            assert_eq!(rows(&mut machine), states(&[(1, "attempted"), (2, "pending")]));
            assert_eq!(machine.due(), (0, None), "what comes after it waits");
        }
        missing(&mut machine);
        machine.pass(Duration::from_secs(5));
        machine.send(0);
        machine.send(0);
        assert_eq!(rows(&mut machine), states(&[(1, "confirmed"), (2, "confirmed")]));
        assert_eq!(stored(&machine), [(Who::Anna, first())]);
        assert!(machine.starred(Who::Ben, SOURCE));
    }
}

#[test]
fn s9_the_user_may_say_it_after_one_list_that_is_not_whole() {
    let mut store = new_store();
    let mut machine = with_sources(&mut store, &[1]);
    machine.act(&reply());
    machine.send_in_vain(UNKNOWN);
    machine.deal(Deal::Retry, 1);
    assert_eq!(machine.due(), (0, None), "the next list may say it");
    machine.sync_with(nameless_reply());
    assert_eq!(machine.due(), (0, None));
    machine.deal(Deal::Retry, 1);
    assert_eq!(machine.due(), (1, None));
    machine.send(0);
    machine.sync_with(nameless_reply());
    assert!(rows(&mut machine).is_empty(), "listed by name");
}

/// Another attempt, and nobody knows again: what lists have said of the one before says nothing of it.
#[test]
fn s9_each_attempt_is_counted_anew() {
    let mut store = new_store();
    let mut machine = with_sources(&mut store, &[1]);
    machine.act(&reply());
    machine.send_in_vain(UNKNOWN);
    for _ in 0..3 {
        machine.sync_with(nameless_reply());
    }
    machine.pass(Duration::from_secs(5));
    machine.send_in_vain(UNKNOWN);
    assert_eq!(rows(&mut machine), states(&[(1, "attempted")]));
    for wanted in ["attempted", "attempted", "pending"] {
        machine.sync_with(nameless_reply());
        assert_eq!(rows(&mut machine), states(&[(1, wanted)]));
    }
}

/// Case S9: where an entry's id cannot be read nobody knows what is listed.
#[test]
fn s9_a_list_with_a_nameless_entry_lets_no_reply_be_sent_again_and_ends_none() {
    let mut store = new_store();
    let mut machine = with_sources(&mut store, &[1]);
    machine.act(&reply());
    machine.attempt();
    machine.end_last(UNKNOWN);
    let now = machine.time();
    let snapshot = |number, whole| {
        move |transaction: &rusqlite::Transaction<'_>| {
            let plan = Plan { replies: ListPlan { whole, ..ListPlan::default() }, ..Plan::default() };
            outbox::after_snapshot(transaction, number, now, Duration::from_secs(3_600), &plan)
        }
    };
    machine.write(snapshot(90, false)).unwrap();
    assert_eq!(machine.rows(), states(&[(1, "attempted")]));
    machine
        .write(|transaction| Ok::<_, StoreError>(transaction.execute("UPDATE outbox SET state = 'confirmed'", [])?))
        .unwrap();
    machine.write(snapshot(91, false)).unwrap();
    assert_eq!(machine.rows(), states(&[(1, "confirmed")]));
    machine.write(snapshot(92, true)).unwrap();
    assert_eq!(machine.rows(), states(&[(1, "refused")]));
}

/// Cases R1 and R3: what was not sent to a source that the server takes off its list is there until it is dismissed.
#[test]
fn r1_replies_that_were_not_sent_outlive_their_source_until_they_are_dismissed() {
    let mut store = new_store();
    let mut machine = with_sources(&mut store, &[1, 1]);
    for number in 0..4 {
        machine.act(&Wish::Reply(SOURCE, Itm::answer(number)));
    }
    machine.act(&Wish::Reply(OTHER, Itm::answer(4)));
    machine.send(0);
    machine.send_in_vain(Ending::Refused);
    machine.send_in_vain(UNKNOWN);
    assert_eq!(
        rows(&mut machine),
        states(&[(1, "confirmed"), (2, "refused"), (3, "attempted"), (4, "pending"), (5, "pending")])
    );
    machine.draft(SOURCE, Some("begun"));
    machine.colleague(What::DeleteSource(SOURCE));
    for _ in 0..2 {
        machine.sync();
        let left = [(2, "refused"), (3, "refused"), (4, "refused"), (5, "pending")];
        assert_eq!(rows(&mut machine), states(&left));
        assert!(machine.source(Who::Anna, SOURCE).is_some() && machine.shown_to(Who::Anna).items.len() == 1);
    }
    let told = outgoing(&mut machine, Who::Anna);
    assert_eq!(
        told.iter().map(|reply| reply.text.clone()).collect::<Vec<_>>(),
        [1, 2, 3].map(|n| Itm::answer(n).text())
    );
    assert_eq!(told[2].reason.as_deref(), Some("the source is no longer on the server"));
    assert_eq!(machine.draft_of(Who::Anna, SOURCE), None, "case R3");
    assert!(machine.act_error(&Wish::Reply(SOURCE, Itm::answer(9))).contains("no longer on the server"));
    for act in [2, 3, 4] {
        machine.deal(Deal::Dismiss, act);
    }
    assert_eq!(machine.source(Who::Anna, SOURCE), None);
    assert_eq!(rows(&mut machine), states(&[(5, "pending")]));
}

/// Case R3: what is written, or taken back, after the source is off the list is in no other place.
#[test]
fn r3_a_draft_keeps_a_source_that_is_off_the_list_until_it_is_forgotten() {
    for taken_back in [true, false] {
        let mut store = new_store();
        let mut machine = with_sources(&mut store, &[1]);
        machine.act(&reply());
        machine.colleague(What::DeleteSource(SOURCE));
        machine.sync();
        assert_eq!(rows(&mut machine), states(&[(1, "refused")]));
        let written = if taken_back {
            machine.deal(Deal::Retry, 1);
            machine.deal(Deal::Cancel, 1);
            text(first())
        } else {
            machine.draft(SOURCE, Some("begun"));
            machine.deal(Deal::Dismiss, 1);
            "begun".to_owned()
        };
        for _ in 0..3 {
            assert!(rows(&mut machine).is_empty() && machine.source(Who::Anna, SOURCE).is_some());
            assert_eq!(machine.draft_of(Who::Anna, SOURCE), Some(written.clone()));
            machine.sync();
        }
        machine.draft(SOURCE, None);
        assert_eq!(machine.source(Who::Anna, SOURCE), None);
    }
}

/// Case D4: whoever deletes such a source deletes the draft with it.
#[test]
fn d4_a_source_that_is_there_only_for_a_draft_can_be_deleted_with_it() {
    let mut store = new_store();
    let mut machine = with_sources(&mut store, &[1]);
    machine.act(&reply());
    machine.colleague(What::DeleteSource(SOURCE));
    machine.sync();
    machine.draft(SOURCE, Some("begun"));
    machine.deal(Deal::Dismiss, 1);
    machine.delete(SOURCE);
    machine.send(0);
    machine.sync();
    assert!(machine.rows().is_empty() && machine.source(Who::Anna, SOURCE).is_none());
    let left: u32 = machine
        .read(|transaction| Ok(transaction.query_row("SELECT count(*) FROM local_draft", [], |row| row.get(0))?));
    assert_eq!(left, 0);
}

/// The same source once more: it can be answered as before.
#[test]
fn r1_a_reply_whose_source_was_left_out_once_is_sent_when_the_user_wants_it() {
    let mut store = new_store();
    let mut machine = with_sources(&mut store, &[1]);
    machine.act(&reply());
    machine.sync_without(SOURCE);
    assert_eq!(rows(&mut machine), states(&[(1, "refused")]));
    machine.sync();
    assert_eq!(rows(&mut machine), states(&[(1, "refused")]));
    machine.deal(Deal::Retry, 1);
    machine.send(0);
    machine.sync();
    assert_eq!(stored(&machine), [(Who::Anna, first())]);
    assert_eq!(listed(&mut machine, first()), Some(text(first())));
}

/// Case D4: whoever deletes the source deletes what was not sent to it.
#[test]
fn d4_a_source_that_is_there_only_for_replies_can_be_deleted_with_them() {
    let mut store = new_store();
    let mut machine = with_sources(&mut store, &[1]);
    machine.act(&reply());
    machine.colleague(What::DeleteSource(SOURCE));
    machine.sync();
    machine.delete(SOURCE);
    machine.send(0);
    assert_eq!(machine.source(Who::Anna, SOURCE), None);
    machine.sync();
    assert!(machine.rows().is_empty());
    let left: u32 = machine.read(|transaction| {
        Ok(transaction.query_row("SELECT count(*) FROM local_removed_source", [], |row| row.get(0))?)
    });
    assert_eq!(left, 0);
}

/// Case R5: which key a source had is forgotten with a deletion that the server has confirmed, and with no other.
#[test]
fn r5_a_deletion_that_was_never_sent_forgets_no_key() {
    let mut store = new_store();
    let mut machine = with_sources(&mut store, &[1]);
    machine.delete(SOURCE);
    for _ in 0..3 {
        machine.sync_without(SOURCE);
    }
    assert!(machine.rows().is_empty());
    assert_eq!(pinned(&mut machine), 1);
}

fn pinned(machine: &mut Machine<'_>) -> u32 {
    machine.read(|transaction| {
        let sql = "SELECT count(*) FROM local_key WHERE fingerprint IS NOT NULL";
        Ok(transaction.query_row(sql, [], |row| row.get(0))?)
    })
}

/// Case D4: the answer never came, and the list says that it is deleted. One list says nothing yet.
#[test]
fn d4_a_deletion_that_may_have_been_made_forgets_the_key_with_the_second_list() {
    for dom0_refuses in [false, true] {
        let mut store = new_store();
        let mut machine = with_sources(&mut store, &[1]);
        machine.delete(SOURCE);
        machine.attempt();
        machine.perform_last();
        if dom0_refuses {
            machine.open.clear();
            machine.choose(0, Opening::Refused);
        }
        machine.end_last(UNKNOWN);
        machine.sync();
        assert_eq!((pinned(&mut machine), machine.rows().len()), (1, 1));
        machine.sync();
        assert_eq!((pinned(&mut machine), machine.rows().len()), (0, 0));
    }
}

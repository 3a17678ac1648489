//! Deletions wait before they are first sent, and are taken back meanwhile.

use std::time::Duration;

use control::{ActId, ActState, Deal};
use rusqlite::Connection;

use super::super as outbox;
use super::hands::with_sources;
use super::machine::{Ending, Machine, Opening};
use super::world::{Itm, Src, What, Who, Wish, new_store};

const SOURCE: Src = Src(0);
const OTHER: Src = Src(1);
const GRACE: Duration = Duration::from_secs(10);
const SECOND: Duration = Duration::from_secs(1);

/// The same as [`with_sources`], where a deletion can be taken back.
fn with_grace<'a>(store: &'a mut Connection, items: &[usize]) -> Machine<'a> {
    let mut machine = with_sources(store, items);
    machine.grace = u64::try_from(GRACE.as_micros()).unwrap();
    machine
}

fn set_back(machine: &mut Machine<'_>, time: Duration) {
    machine.now -= u64::try_from(time.as_micros()).unwrap();
}

/// The words for the error that an undo meets, which changes nothing.
fn undo_error(machine: &mut Machine<'_>, acts: &[u64]) -> String {
    let (who, before) = (machine.signed_in.unwrap(), machine.rows());
    let acts: Vec<_> = acts.iter().copied().map(ActId).collect();
    let undone = machine.write(|transaction| outbox::undo(transaction, who.id(), &acts));
    assert_eq!(machine.rows(), before);
    undone.unwrap_err().to_string()
}

/// Case D2.
#[test]
fn d2_a_deletion_shows_at_once_and_is_sent_when_its_time_is_over() {
    let mut store = new_store();
    let mut machine = with_grace(&mut store, &[2, 1]);
    machine.delete(SOURCE);
    assert!(machine.being_deleted(Who::Anna, SOURCE));
    assert_eq!(machine.due(), (0, Some(GRACE)));
    assert_eq!(machine.states(), [(1, ActState::Grace)]);
    let due = machine.now + 10_000_000;
    assert_eq!(machine.queue()[0].next_try.map(|at| at.get()), Some(due));
    // What is about others does not wait for it.
    machine.act(&Wish::Star(vec![OTHER]));
    machine.send(0);
    assert_eq!(machine.states(), [(1, ActState::Grace)]);
    machine.pass(GRACE - SECOND);
    assert_eq!(machine.due(), (0, Some(SECOND)));
    machine.pass(SECOND);
    assert_eq!((machine.due(), machine.states()), ((1, None), vec![(1, ActState::Waiting)]));
    machine.send(0);
    assert_eq!(machine.source(Who::Anna, SOURCE), None);
}

#[test]
fn what_is_taken_back_is_as_before_and_lets_the_rest_of_its_source_go_on() {
    let mut store = new_store();
    let mut machine = with_grace(&mut store, &[2, 1]);
    machine.act(&Wish::Star(vec![SOURCE]));
    machine.delete(SOURCE);
    assert_eq!(machine.due(), (0, Some(GRACE)), "a source's deletion comes before its other rows");
    assert_eq!(machine.undo(&[]), Some(1));
    assert!(!machine.being_deleted(Who::Anna, SOURCE));
    assert_eq!(machine.totals(), (2, 3, 3));
    assert_eq!(machine.due(), (1, None));
    machine.send(0);
    assert!(machine.starred(Who::Anna, SOURCE));
    machine.pass(GRACE);
    assert_eq!(machine.due(), (0, None));
}

#[test]
fn without_a_name_the_newest_deletion_is_taken_back() {
    let mut store = new_store();
    let mut machine = with_grace(&mut store, &[2, 3]);
    machine.delete(SOURCE);
    machine.act(&Wish::DeleteItems(OTHER, vec![Itm(2), Itm(3)]));
    machine.act(&Wish::Star(vec![OTHER]));
    // All of its rows, and only they.
    assert_eq!(machine.undo(&[]), Some(2));
    assert!(machine.being_deleted(Who::Anna, SOURCE));
    assert_eq!(machine.undo(&[]), Some(1));
    let nothing = undo_error(&mut machine, &[]);
    assert!(nothing.contains("nothing to undo") && nothing.contains("splitdrop queue"), "{nothing}");
}

#[test]
fn what_was_sent_or_is_no_deletion_or_somebody_elses_is_not_taken_back() {
    let mut store = new_store();
    let mut machine = with_grace(&mut store, &[2, 1, 1]);
    machine.act(&Wish::Star(vec![OTHER]));
    machine.delete(SOURCE);
    machine.send(0);
    assert!(undo_error(&mut machine, &[1]).contains("`splitdrop cancel 1`"));
    machine.pass(GRACE);
    machine.attempt();
    assert_eq!(undo_error(&mut machine, &[2]), "act 2 has been sent, and can no longer be taken back");
    machine.end_last(Ending::Refused);
    assert!(undo_error(&mut machine, &[2]).contains("`splitdrop dismiss 2`"));
    assert!(undo_error(&mut machine, &[7]).contains("no act 7"));
    // One that cannot be taken back keeps the others.
    machine.delete(Src(2));
    assert!(undo_error(&mut machine, &[3, 2]).contains("act 2"));
    machine.login(Who::Ben);
    assert!(undo_error(&mut machine, &[]).contains("nothing to undo"));
    assert!(undo_error(&mut machine, &[3]).contains("no act 3"));
}

#[test]
fn an_attempt_whose_rows_were_taken_back_sends_nothing() {
    let mut store = new_store();
    let mut machine = with_grace(&mut store, &[2, 1]);
    machine.delete(SOURCE);
    machine.pass(GRACE);
    // The call is open, and nothing is noted as sent yet.
    machine.choose(0, Opening::Allowed);
    assert_eq!(machine.undo(&[]), Some(1));
    machine.begin(0);
    machine.perform(0, u8::MAX, 0);
    machine.end(0, Ending::Answered);
    assert!(machine.server.performed.is_empty() && machine.rows().is_empty());
    assert!(!machine.being_deleted(Who::Anna, SOURCE));
}

#[test]
fn an_attempt_without_effect_ends_the_time_and_the_act_can_still_be_taken_back_by_its_number() {
    let mut store = new_store();
    let mut machine = with_grace(&mut store, &[2, 1]);
    machine.delete(SOURCE);
    machine.pass(GRACE);
    machine.send_in_vain(Ending::NoEffect);
    assert_eq!((machine.due(), machine.states()), ((1, None), vec![(1, ActState::Waiting)]));
    assert!(undo_error(&mut machine, &[]).contains("nothing to undo"));
    assert_eq!(machine.undo(&[1]), Some(1));
}

#[test]
fn what_dom0_was_asked_about_is_taken_back_by_its_number_only() {
    let mut store = new_store();
    let mut machine = with_grace(&mut store, &[2, 1]);
    machine.dom0_asks = true;
    machine.delete(SOURCE);
    machine.pass(GRACE);
    machine.choose(0, Opening::Failed);
    assert_eq!((machine.due(), machine.states()), ((0, None), vec![(1, ActState::Held)]));
    // A login is no word of the user's, and no clock is.
    machine.login(Who::Anna);
    set_back(&mut machine, 3 * GRACE);
    assert_eq!((machine.due(), machine.states()), ((0, None), vec![(1, ActState::Held)]));
    assert!(undo_error(&mut machine, &[]).contains("nothing to undo"));
    assert_eq!(machine.undo(&[1]), Some(1));
}

#[test]
fn a_login_gives_all_of_the_time_again() {
    let mut store = new_store();
    let mut machine = with_grace(&mut store, &[2, 1]);
    machine.delete(SOURCE);
    for over in [GRACE - SECOND, 10 * GRACE] {
        machine.crash();
        machine.pass(over);
        assert!(machine.being_deleted(Who::Anna, SOURCE), "nobody is signed in");
        assert_eq!(machine.states(), [(1, ActState::Waiting)]);
        machine.login(Who::Ben);
        machine.login(Who::Anna);
        assert_eq!((machine.due(), machine.states()), ((0, Some(GRACE)), vec![(1, ActState::Grace)]));
    }
    assert_eq!(machine.undo(&[]), Some(1));
}

#[test]
fn what_the_settings_say_at_the_login_counts() {
    let mut store = new_store();
    let mut machine = with_grace(&mut store, &[2, 1]);
    machine.delete(SOURCE);
    machine.grace = 60_000_000;
    machine.login(Who::Anna);
    assert_eq!(machine.due(), (0, Some(Duration::from_secs(60))));
    machine.grace = 0;
    machine.login(Who::Anna);
    assert_eq!(machine.due(), (1, None));
    machine.send(0);
    assert_eq!(machine.source(Who::Anna, SOURCE), None);
}

#[test]
fn a_clock_that_was_set_back_gives_all_of_the_time_again_and_no_more() {
    let mut store = new_store();
    let mut machine = with_grace(&mut store, &[2, 1]);
    machine.delete(SOURCE);
    machine.pass(4 * SECOND);
    // Back within the time: it takes so much longer.
    set_back(&mut machine, 2 * SECOND);
    assert_eq!(machine.due(), (0, Some(8 * SECOND)));
    // Back to long before it began.
    for _ in 0..3 {
        set_back(&mut machine, 1_000 * GRACE);
        assert!(machine.ready_now().to_mend);
        assert_eq!(machine.states(), [(1, ActState::Grace)]);
        machine.pass(GRACE - SECOND);
        assert_eq!(machine.due(), (0, Some(SECOND)));
    }
    machine.pass(SECOND);
    assert_eq!(machine.due(), (1, None));
    // Other waits are over then, as ever.
    machine.send_in_vain(Ending::Fault { retry_after: None });
    assert!(matches!(machine.due(), (0, Some(_))));
    set_back(&mut machine, 1_000 * GRACE);
    assert_eq!(machine.due(), (1, None));
    assert!(!machine.ready_now().to_mend);
}

#[test]
fn snapshots_without_the_object_end_what_waits() {
    let mut store = new_store();
    let mut machine = with_grace(&mut store, &[2, 2]);
    machine.delete(SOURCE);
    machine.act(&Wish::DeleteItems(OTHER, vec![Itm(2)]));
    machine.colleague(What::DeleteSource(SOURCE));
    machine.colleague(What::DeleteItem(OTHER, Itm(2)));
    machine.sync();
    assert_eq!((machine.source(Who::Anna, SOURCE), machine.item(Who::Anna, Itm(2))), (None, None));
    assert_eq!(machine.rows().len(), 2, "they can still be taken back");
    machine.pass(GRACE);
    machine.sync();
    assert!(undo_error(&mut machine, &[]).contains("nothing to undo"));
    machine.sync();
    assert!(machine.rows().is_empty());
}

#[test]
fn a_retry_does_not_wait_any_longer() {
    let mut store = new_store();
    let mut machine = with_grace(&mut store, &[2, 1]);
    machine.delete(SOURCE);
    machine.deal(Deal::Retry, 1).unwrap();
    assert_eq!(machine.due(), (1, None));
    // One that is cancelled is taken back as well.
    machine.delete(OTHER);
    assert_eq!(machine.deal(Deal::Cancel, 2), Some(1));
    assert!(!machine.being_deleted(Who::Anna, OTHER));
}

/// What can still be taken back can be, though a list does not have it.
#[test]
fn a_deletion_in_its_time_of_grace_can_be_taken_back_whatever_the_server_lists() {
    let mut store = new_store();
    let mut machine = with_grace(&mut store, &[1]);
    machine.delete(SOURCE);
    machine.sync_without(SOURCE);
    assert_eq!(machine.states(), [(1, ActState::Grace)]);
    assert_eq!(machine.undo(&[]), Some(1));
    machine.sync();
    assert!(!machine.being_deleted(Who::Anna, SOURCE));
    assert_eq!(machine.totals(), (1, 1, 1));
}

/// It was not sent, and would be if the next list had it again.
#[test]
fn what_was_set_aside_when_its_time_was_over_can_be_taken_back_too() {
    let mut store = new_store();
    let mut machine = with_grace(&mut store, &[1]);
    machine.delete(SOURCE);
    machine.pass(GRACE);
    machine.sync_without(SOURCE);
    assert!(undo_error(&mut machine, &[]).contains("nothing to undo"));
    assert_eq!(machine.undo(&[1]), Some(1));
    machine.sync();
    assert!(!machine.being_deleted(Who::Anna, SOURCE));
}

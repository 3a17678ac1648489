//! Attempts: when, in which order, and what becomes of them.

use std::time::Duration;

use control::{ActId, ActState, Deal};

use super::hands::with_sources;
use super::machine::{Ending, Opening};
use super::world::{Itm, Src, Who, Wish, new_store};

const SOURCE: Src = Src(0);
const UNKNOWN: Ending = Ending::Fault { retry_after: None };

fn star() -> Wish {
    Wish::Star(vec![SOURCE])
}

/// Case S4.
#[test]
fn s4_the_waits_are_stored_and_survive_a_crash() {
    let mut store = new_store();
    let mut machine = with_sources(&mut store, &[0]);
    machine.act(&star());
    for wait in [5, 10, 20, 40, 75, 75] {
        machine.send_in_vain(UNKNOWN);
        machine.crash();
        machine.login(Who::Anna);
        let wait = Duration::from_secs(wait);
        assert_eq!(machine.due(), (0, Some(wait)));
        machine.pass(wait - Duration::from_secs(1));
        assert_eq!(machine.due(), (0, Some(Duration::from_secs(1))));
        machine.pass(Duration::from_secs(1));
        assert_eq!(machine.due(), (1, None));
    }
    assert_eq!(machine.queue()[0].attempts, 6);
}

/// Case S4.
#[test]
fn s4_what_the_server_refuses_with_faults_does_not_hold_up_other_sources() {
    let mut store = new_store();
    let mut machine = with_sources(&mut store, &[0; 11]);
    machine.act(&star());
    machine.send_in_vain(UNKNOWN);
    machine.act(&Wish::Star((1..11).map(Src).collect()));
    assert_eq!(machine.due(), (10, Some(Duration::from_secs(5))));
}

/// Case S4.
#[test]
fn s4_ten_minutes_of_faults_are_eleven_attempts() {
    let mut store = new_store();
    let mut machine = with_sources(&mut store, &[0]);
    machine.act(&star());
    let (end, mut attempts) = (machine.now + 600_000_000, 0);
    while machine.now < end {
        machine.send_in_vain(UNKNOWN);
        attempts += 1;
        let (_, wait) = machine.due();
        machine.pass(wait.unwrap());
    }
    assert_eq!(attempts, 11);
}

#[test]
fn the_server_is_left_alone_for_as_long_as_it_asks_up_to_an_hour() {
    for (asked, wait) in [(1, 5), (300, 300), (86_400, 3_600)] {
        let mut store = new_store();
        let mut machine = with_sources(&mut store, &[0]);
        machine.act(&star());
        machine.send_in_vain(Ending::Fault { retry_after: Some(Duration::from_secs(asked)) });
        assert_eq!(machine.due(), (0, Some(Duration::from_secs(wait))));
        assert_eq!(machine.queue()[0].next_try.unwrap().get() - machine.now, wait * 1_000_000);
    }
}

#[test]
fn a_clock_that_was_set_back_makes_what_waits_due() {
    let mut store = new_store();
    let mut machine = with_sources(&mut store, &[0]);
    machine.act(&star());
    machine.send_in_vain(Ending::Fault { retry_after: Some(Duration::from_secs(3_600)) });
    machine.now -= 1;
    assert_eq!(machine.due(), (1, None));
    assert_eq!(machine.queue()[0].next_try, None);
}

#[test]
fn an_attempt_without_effect_does_not_count_and_the_row_can_be_taken_back() {
    let mut store = new_store();
    let mut machine = with_sources(&mut store, &[0]);
    machine.act(&star());
    machine.send_in_vain(Ending::NoEffect);
    assert_eq!(machine.states(), [(1, ActState::Waiting)]);
    assert_eq!(machine.queue()[0].attempts, 0);
    assert_eq!(machine.due(), (1, None));
    machine.deal(Deal::Cancel, 1);
    assert!(machine.rows().is_empty());
}

#[test]
fn an_attempt_without_effect_does_not_undo_what_an_earlier_one_may_have_done() {
    let mut store = new_store();
    let mut machine = with_sources(&mut store, &[0]);
    machine.act(&star());
    machine.attempt();
    machine.perform_last();
    machine.end_last(UNKNOWN);
    machine.pass(Duration::from_secs(5));
    machine.send_in_vain(Ending::NoEffect);
    assert_eq!(machine.states(), [(1, ActState::Unconfirmed)]);
    assert_eq!(machine.deal_error(Deal::Cancel, &[1]), "act 1 has been sent, and can no longer be taken back");
}

/// The row was folded between the choice and the note that it is sent.
#[test]
fn what_was_taken_back_before_it_was_noted_as_sent_is_not_sent() {
    let mut store = new_store();
    let mut machine = with_sources(&mut store, &[0]);
    machine.act(&star());
    machine.choose(0, Opening::Allowed);
    machine.act(&Wish::Unstar(vec![SOURCE]));
    machine.begin(0);
    machine.perform_last();
    machine.end_last(Ending::Answered);
    assert!(machine.server.performed.is_empty());
    assert_eq!(machine.states(), [(2, ActState::Waiting)]);
}

#[test]
fn what_a_crash_cut_off_is_due_at_once_and_cannot_be_taken_back() {
    let mut store = new_store();
    let mut machine = with_sources(&mut store, &[1]);
    machine.delete(SOURCE);
    machine.attempt();
    machine.crash();
    machine.login(Who::Anna);
    assert_eq!(machine.states(), [(1, ActState::Unconfirmed)]);
    assert!(machine.being_deleted(Who::Anna, SOURCE));
    assert_eq!(machine.due(), (1, None));
    machine.deal(Deal::Cancel, 1);
    assert_eq!(machine.states(), [(1, ActState::Unconfirmed)]);
}

/// The numbers of snapshots go on behind every one that a row knows of.
#[test]
fn after_a_crash_the_next_snapshot_counts_as_asked_for_after_every_confirmation() {
    let mut store = new_store();
    let mut machine = with_sources(&mut store, &[0]);
    for _ in 0..5 {
        machine.sync();
    }
    machine.act(&star());
    machine.send(0);
    machine.crash();
    assert_eq!(machine.snapshot, 6);
    machine.login(Who::Anna);
    assert!(machine.starred(Who::Anna, SOURCE));
    machine.sync();
    assert!(machine.rows().is_empty());
}

#[test]
fn sources_are_served_first_come_first_served_and_a_busy_one_is_left_out() {
    let mut store = new_store();
    let mut machine = with_sources(&mut store, &[0, 1, 0]);
    machine.act(&Wish::Star(vec![Src(2)]));
    machine.act(&Wish::Seen(Src(1), vec![Itm(0)]));
    machine.act(&star());
    machine.act(&Wish::DeleteSources(vec![Src(2)]));
    let acts = |machine: &mut super::machine::Machine<'_>| -> Vec<_> {
        machine.ready().iter().map(|batch| batch.act).collect()
    };
    assert_eq!(acts(&mut machine), [2, 3, 4].map(ActId));
    machine.attempt();
    assert_eq!(acts(&mut machine), [3, 4].map(ActId));
}

/// The answer of an attempt that a snapshot has overtaken changes nothing.
#[test]
fn an_answer_comes_too_late_for_a_row_that_has_ended() {
    for ending in [Ending::Answered, UNKNOWN, Ending::Refused, Ending::NoEffect] {
        let mut store = new_store();
        let mut machine = with_sources(&mut store, &[0]);
        machine.act(&star());
        machine.attempt();
        machine.perform_last();
        machine.sync();
        assert!(machine.rows().is_empty());
        machine.end_last(ending);
        assert!(machine.rows().is_empty());
        assert!(machine.starred(Who::Anna, SOURCE));
    }
}

//! Case Q4: whose acts they are.

use control::{ActState, Deal};

use super::super as outbox;
use super::hands::with_sources;
use super::machine::Ending;
use super::world::{Itm, Src, Who, Wish, new_store};

const SOURCE: Src = Src(0);
const OTHER: Src = Src(1);
const UNKNOWN: Ending = Ending::Fault { retry_after: None };

/// Case Q4.
#[test]
fn q4_unconfirmed_acts_show_in_their_own_journalists_views_only() {
    let mut store = new_store();
    let mut machine = with_sources(&mut store, &[2, 1]);
    machine.act(&Wish::Star(vec![SOURCE]));
    machine.act(&Wish::Seen(SOURCE, vec![Itm(0)]));
    machine.act(&Wish::DeleteItems(SOURCE, vec![Itm(1)]));
    machine.delete(OTHER);
    machine.send_in_vain(UNKNOWN);
    assert_eq!(machine.totals(), (1, 1, 0));
    machine.login(Who::Ben);
    assert!(!machine.starred(Who::Ben, SOURCE));
    assert!(!machine.being_deleted(Who::Ben, OTHER));
    assert_eq!(machine.totals(), (2, 3, 3));
    machine.login(Who::Anna);
    assert!(machine.starred(Who::Anna, SOURCE));
    assert_eq!(machine.totals(), (1, 1, 0));
}

/// Case Q4.
#[test]
fn q4_nothing_is_sent_for_somebody_who_is_not_signed_in() {
    let mut store = new_store();
    let mut machine = with_sources(&mut store, &[0, 0]);
    machine.act(&Wish::Star(vec![SOURCE, OTHER]));
    machine.send_in_vain(UNKNOWN);
    machine.login(Who::Ben);
    machine.pass(std::time::Duration::from_secs(3_600));
    assert_eq!(machine.due(), (0, None));
    // Shown as what they are: one was never sent, of the other nobody knows.
    let queue = machine.queue();
    let told: Vec<_> =
        queue.iter().map(|entry| (entry.source, entry.own, entry.journalist, entry.state.clone())).collect();
    let anna = Who::Anna.id();
    let must = [(SOURCE.id(), false, anna, ActState::Unconfirmed), (OTHER.id(), false, anna, ActState::Waiting)];
    assert_eq!(told, must);
    let counts = machine.read(outbox::counts);
    assert_eq!((counts.waiting, counts.of_others), (0, 2));
    machine.deal(Deal::Cancel, 1);
    assert_eq!(machine.queue(), queue);
    machine.login(Who::Anna);
    assert_eq!(machine.due(), (2, None));
}

/// Case Q4: a snapshot of Ben's session settles what it can.
#[test]
fn q4_a_snapshot_settles_another_journalists_acts_too() {
    let mut store = new_store();
    let mut machine = with_sources(&mut store, &[1, 0, 0]);
    machine.act(&Wish::Star(vec![SOURCE]));
    machine.delete(OTHER);
    machine.act(&Wish::Star(vec![Src(2)]));
    for _ in 0..2 {
        machine.attempt();
        machine.perform_last();
    }
    machine.login(Who::Ben);
    machine.sync();
    assert_eq!(machine.states(), [(3, ActState::Waiting)]);
    assert!(machine.starred(Who::Ben, SOURCE));
    assert_eq!(machine.source(Who::Ben, OTHER), None);
}

/// Case Q4.
#[test]
fn q4_what_the_server_confirmed_shows_to_everybody() {
    let mut store = new_store();
    let mut machine = with_sources(&mut store, &[2, 1]);
    machine.act(&Wish::Star(vec![SOURCE]));
    machine.send(0);
    machine.act(&Wish::Seen(SOURCE, vec![Itm(0)]));
    machine.send(0);
    machine.act(&Wish::DeleteItems(SOURCE, vec![Itm(1)]));
    machine.send(0);
    machine.delete(OTHER);
    machine.send(0);
    machine.login(Who::Ben);
    assert!(machine.starred(Who::Ben, SOURCE));
    assert_eq!(machine.source(Who::Ben, OTHER), None);
    // A seen mark is its journalist's.
    assert_eq!(machine.totals(), (1, 1, 1));
}

#[test]
fn of_two_journalists_stars_the_one_confirmed_last_counts() {
    let mut store = new_store();
    let mut machine = with_sources(&mut store, &[0]);
    machine.act(&Wish::Star(vec![SOURCE]));
    machine.send(0);
    machine.login(Who::Ben);
    machine.act(&Wish::Unstar(vec![SOURCE]));
    machine.send(0);
    for viewer in Who::BOTH {
        assert!(!machine.starred(viewer, SOURCE));
    }
    assert_eq!(machine.rows(), [(2, "confirmed".to_owned())]);
}

#[test]
fn an_older_act_that_is_confirmed_later_counts_too() {
    let mut store = new_store();
    let mut machine = with_sources(&mut store, &[0]);
    machine.act(&Wish::Star(vec![SOURCE]));
    machine.send_in_vain(UNKNOWN);
    machine.login(Who::Ben);
    machine.act(&Wish::Star(vec![SOURCE]));
    machine.send(0);
    machine.act(&Wish::Unstar(vec![SOURCE]));
    machine.send(0);
    machine.login(Who::Anna);
    machine.pass(std::time::Duration::from_secs(5));
    machine.send(0);
    for viewer in Who::BOTH {
        assert!(machine.starred(viewer, SOURCE));
    }
    assert_eq!(machine.rows(), [(1, "confirmed".to_owned())]);
}

#[test]
fn while_nobody_is_signed_in_the_views_are_those_of_whoever_was_last() {
    let mut store = new_store();
    let mut machine = with_sources(&mut store, &[2]);
    machine.act(&Wish::Seen(SOURCE, vec![Itm(0)]));
    machine.delete(SOURCE);
    machine.logout();
    assert!(machine.being_deleted(Who::Anna, SOURCE));
    assert_eq!(machine.totals(), (0, 0, 0));
    machine.crash();
    assert_eq!(machine.totals(), (0, 0, 0));
}

/// An answer of a session that is over says nothing: the attempt is forgotten, and its row is open.
#[test]
fn a_logout_leaves_what_was_being_sent_open() {
    let mut store = new_store();
    let mut machine = with_sources(&mut store, &[0]);
    machine.act(&Wish::Star(vec![SOURCE]));
    machine.attempt();
    machine.perform_last();
    machine.login(Who::Anna);
    assert_eq!(machine.states(), [(1, ActState::Unconfirmed)]);
    assert_eq!(machine.due(), (1, None));
}

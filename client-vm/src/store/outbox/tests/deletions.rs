//! Deletions, from the click until the server lists their objects no more.

use std::time::Duration;

use control::{ActState, Deal};

use super::super as outbox;
use super::hands::with_sources;
use super::machine::{Ending, Machine, Opening};
use super::server::FOR_EVER;
use super::world::{Damage, Itm, LeftOut, Src, What, Who, Wish, new_store};

const SOURCE: Src = Src(0);
const OTHER: Src = Src(1);
const UNKNOWN: Ending = Ending::Fault { retry_after: None };

/// Case D1 (a).
#[test]
fn d1_a_an_older_snapshot_does_not_bring_back_what_was_deleted() {
    let mut store = new_store();
    let mut machine = with_sources(&mut store, &[2, 1]);
    machine.delete(SOURCE);
    machine.act(&Wish::DeleteItems(OTHER, vec![Itm(2)]));
    machine.ask_snapshot();
    machine.list_sources();
    machine.list_items();
    machine.send(0);
    machine.send(0);
    machine.apply();
    assert_eq!(machine.source(Who::Anna, SOURCE), None);
    assert_eq!(machine.item(Who::Anna, Itm(2)), None);
    assert_eq!(machine.totals(), (1, 0, 0));
    machine.crash();
    assert_eq!(machine.totals(), (1, 0, 0));
    machine.login(Who::Anna);
    machine.sync();
    assert!(machine.rows().is_empty());
}

/// Case D1 (b).
#[test]
fn d1_b_a_deletion_that_takes_its_time_stays_in_sight_as_one() {
    let mut store = new_store();
    let mut machine = with_sources(&mut store, &[2, 1]);
    machine.delete(SOURCE);
    machine.attempt();
    machine.end_last(UNKNOWN);
    for _ in 0..8 {
        machine.pass(Duration::from_secs(15));
        machine.sync();
        assert!(machine.being_deleted(Who::Anna, SOURCE));
        assert_eq!(machine.totals(), (1, 1, 1));
    }
    machine.colleague(What::DeleteSource(SOURCE));
    machine.sync();
    assert_eq!(machine.source(Who::Anna, SOURCE), None);
    assert!(machine.states().is_empty());
    machine.sync();
    assert!(machine.rows().is_empty());
}

/// Case D1: a list that leaves out what is listed before and after it.
#[test]
fn d1_one_list_without_its_source_or_item_forgets_no_deletion() {
    for sent in [false, true] {
        let mut store = new_store();
        let mut machine = with_sources(&mut store, &[2, 2]);
        machine.delete(SOURCE);
        machine.act(&Wish::DeleteItems(OTHER, vec![Itm(3)]));
        if sent {
            machine.send_in_vain(UNKNOWN);
            machine.send_in_vain(UNKNOWN);
        }
        machine.sync_without(SOURCE);
        machine.sync_without(OTHER);
        assert!(machine.being_deleted(Who::Anna, SOURCE));
        assert_eq!(machine.source(Who::Anna, OTHER), None);
        machine.sync();
        assert!(machine.being_deleted(Who::Anna, SOURCE) && !machine.being_deleted(Who::Anna, OTHER));
        assert!(machine.item(Who::Anna, Itm(3)).unwrap().being_deleted);
        let state = if sent { ActState::Unconfirmed } else { ActState::Waiting };
        assert_eq!(machine.states(), [(1, state.clone()), (2, state)]);
        machine.pass(Duration::from_secs(5));
        machine.send(0);
        machine.send(0);
        machine.sync();
        assert_eq!((machine.rows(), machine.totals()), (Vec::new(), (1, 1, 1)));
    }
}

/// Case D1: whose act it is shows only in their own views, also once it was set aside.
#[test]
fn d1_a_deletion_that_was_never_sent_hides_nothing_from_others() {
    let mut store = new_store();
    let mut machine = with_sources(&mut store, &[1]);
    machine.delete(SOURCE);
    machine.login(Who::Ben);
    machine.sync_without(SOURCE);
    machine.sync();
    assert!(!machine.being_deleted(Who::Ben, SOURCE) && machine.being_deleted(Who::Anna, SOURCE));
    for _ in 0..4 {
        machine.pass(Duration::from_secs(3_600));
        machine.sync();
    }
    assert_eq!(machine.states(), [(1, ActState::Waiting)], "nobody has confirmed it: there is nothing to complain of");
}

/// Case D3: a bad list does not make anybody forget what was refused. The machine compares that it is told when it ends.
#[test]
fn d3_one_list_without_its_source_forgets_no_refused_deletion_and_two_in_a_row_do() {
    let mut store = new_store();
    let mut machine = with_sources(&mut store, &[1]);
    machine.delete(SOURCE);
    machine.send_in_vain(Ending::Refused);
    for _ in 0..2 {
        machine.sync_without(SOURCE);
        assert_eq!(machine.states(), [(1, ActState::Refused)]);
        machine.sync();
        assert_eq!(machine.states(), [(1, ActState::Refused)]);
    }
    machine.sync_without(SOURCE);
    machine.deal(Deal::Retry, 1);
    machine.sync();
    assert_eq!(machine.states(), [(1, ActState::Waiting)], "after all");
    machine.send_in_vain(Ending::Refused);
    machine.colleague(What::DeleteSource(SOURCE));
    machine.sync();
    assert_eq!(machine.states(), [(1, ActState::Refused)]);
    machine.sync();
    assert!(machine.rows().is_empty());
}

/// Cases D1 and S9: a list with an entry that has no id cannot say that it is without the object.
#[test]
fn s9_a_list_that_is_not_whole_is_no_second_one_without_an_object() {
    let left_out = |itself| Some(LeftOut { source: SOURCE, itself, items: true });
    let bad = |itself| Damage { left_out: left_out(itself), ..Damage::default() };
    let of_sources = (bad(true), Damage { nameless_source: Some(SOURCE), ..Damage::default() });
    let of_items = (bad(false), Damage { nameless_item: Some(Itm(0)), ..Damage::default() });
    for ((bad, nameless), refused) in
        [(of_sources.clone(), false), (of_sources, true), (of_items.clone(), false), (of_items, true)]
    {
        let mut store = new_store();
        let mut machine = with_sources(&mut store, &[1]);
        machine.act(&Wish::DeleteItems(SOURCE, vec![Itm(0)]));
        machine.act(&Wish::Star(vec![SOURCE]));
        if refused {
            machine.send_in_vain(Ending::Refused);
            machine.send_in_vain(Ending::Refused);
        }
        let before = machine.states();
        machine.sync_with(bad);
        for _ in 0..3 {
            machine.sync_with(nameless.clone());
        }
        machine.sync();
        assert_eq!(machine.states(), before);
    }
}

/// The machine compares what is told: gone, and not that the server shows it.
#[test]
fn two_lists_in_a_row_without_it_end_a_deletion() {
    let mut store = new_store();
    let mut machine = with_sources(&mut store, &[1, 1]);
    machine.delete(SOURCE);
    machine.act(&Wish::Star(vec![OTHER]));
    machine.colleague(What::DeleteSource(SOURCE));
    machine.colleague(What::DeleteSource(OTHER));
    machine.sync();
    assert!(machine.states().is_empty());
    assert_eq!(machine.due(), (0, None));
    machine.sync();
    assert!(machine.rows().is_empty());
}

/// What was being sent when its object went, and came through.
#[test]
fn the_servers_word_counts_for_what_was_set_aside() {
    let mut store = new_store();
    let mut machine = with_sources(&mut store, &[1]);
    machine.delete(SOURCE);
    machine.attempt();
    machine.sync_without(SOURCE);
    machine.perform(0, u8::MAX, 3);
    machine.end_last(Ending::Answered);
    for _ in 0..3 {
        machine.sync();
        assert_eq!(machine.source(Who::Anna, SOURCE), None, "the server has said that it is deleted");
    }
    machine.sync();
    assert!(machine.rows().is_empty());
}

/// Case S9: what is not named is not known to be listed, so nothing is wrong with the deletion.
#[test]
fn s9_a_list_that_is_not_whole_does_not_say_that_something_was_not_deleted() {
    let mut store = new_store();
    let mut machine = with_sources(&mut store, &[1, 1]);
    machine.delete(SOURCE);
    machine.act(&Wish::DeleteItems(OTHER, vec![Itm(1)]));
    machine.send(0);
    machine.send(0);
    for _ in 0..4 {
        machine.pass(Duration::from_secs(3_600));
        machine.sync_with(Damage { nameless_source: Some(Src(9)), nameless_item: Some(Itm(9)), ..Damage::default() });
        assert_eq!(machine.source(Who::Anna, SOURCE), None);
        assert_eq!(machine.item(Who::Anna, Itm(1)), None);
    }
    // Item 9 stands for an entry of the list of replies, and item 1 is a reply.
    assert!(machine.states().is_empty());
    machine.sync();
    assert!(machine.rows().is_empty());
}

/// Case D1 (c).
#[test]
fn d1_c_what_is_listed_after_its_deletion_is_not_shown() {
    let mut store = new_store();
    let mut machine = with_sources(&mut store, &[2, 1]);
    machine.delete(SOURCE);
    machine.send(3);
    for _ in 0..3 {
        machine.sync();
        assert_eq!(machine.source(Who::Anna, SOURCE), None);
        assert_eq!(machine.totals(), (1, 1, 1));
        assert_eq!(machine.rows().len(), 1);
    }
    machine.sync();
    assert!(machine.rows().is_empty());
}

/// Case D1 (d).
#[test]
fn d1_d_twenty_deletions_in_a_row_stay_deleted_through_any_sync() {
    let mut store = new_store();
    let mut machine = with_sources(&mut store, &[1; 20]);
    for source in 0..20 {
        machine.delete(Src(source));
        machine.ask_snapshot();
        machine.list_sources();
        if source % 3 == 0 {
            machine.send(1);
        }
        machine.list_items();
        machine.apply();
        let shown = machine.shown_to(Who::Anna);
        for known in 0..=source {
            assert!(shown.sources.get(&Src(known)).is_none_or(|shown| shown.being_deleted));
        }
        assert_eq!(machine.totals().0, u64::from(19 - source));
    }
}

/// Case D3.
#[test]
fn d3_a_deletion_of_which_nobody_knows_is_tried_again_and_what_is_gone_is_done() {
    let mut store = new_store();
    let mut machine = with_sources(&mut store, &[0]);
    machine.delete(SOURCE);
    machine.attempt();
    machine.perform_last();
    machine.end_last(UNKNOWN);
    assert!(machine.being_deleted(Who::Anna, SOURCE));
    machine.pass(Duration::from_secs(5));
    machine.send(0);
    assert_eq!(machine.source(Who::Anna, SOURCE), None);
}

/// Case D3.
#[test]
fn d3_what_dom0_refuses_is_refused_and_dom0_is_not_asked_again_without_the_user() {
    let mut store = new_store();
    let mut machine = with_sources(&mut store, &[0]);
    machine.dom0_asks = true;
    machine.delete(SOURCE);
    machine.choose(0, Opening::Refused);
    assert_eq!(machine.states(), [(1, ActState::Refused)]);
    assert!(!machine.being_deleted(Who::Anna, SOURCE));
    machine.pass(Duration::from_secs(86_400));
    assert_eq!(machine.due(), (0, None));
    machine.deal(Deal::Retry, 1);
    assert_eq!(machine.due(), (1, None));
    assert!(machine.being_deleted(Who::Anna, SOURCE));
}

/// Case D3.
#[test]
fn d3_a_lost_call_that_dom0_was_asked_about_waits_for_the_user_through_a_crash() {
    let mut store = new_store();
    let mut machine = with_sources(&mut store, &[0, 0]);
    machine.dom0_asks = true;
    machine.act(&Wish::DeleteSources(vec![SOURCE, OTHER]));
    machine.choose(0, Opening::Allowed);
    // The other one goes in the same call.
    assert_eq!(machine.due(), (1, None));
    machine.crash();
    machine.login(Who::Anna);
    assert_eq!(machine.states(), [(1, ActState::Held), (1, ActState::Held)]);
    assert_eq!(machine.due(), (0, None));
    machine.deal(Deal::Retry, 1);
    assert_eq!(machine.due(), (2, None));
}

/// Case D3.
#[test]
fn d3_the_next_call_of_an_act_that_was_too_long_for_one_is_another_question() {
    let mut store = new_store();
    let mut machine = with_sources(&mut store, &[0, 0]);
    machine.dom0_asks = true;
    machine.act(&Wish::DeleteSources(vec![SOURCE, OTHER]));
    machine.send(0);
    machine.send_in_vain(Ending::UsedUp);
    assert_eq!(machine.states(), [(1, ActState::Waiting)]);
    assert_eq!(machine.due(), (1, None));
}

/// Case D6.
#[test]
fn d6_what_came_after_the_click_survives_and_is_unread() {
    let mut store = new_store();
    let mut machine = with_sources(&mut store, &[3]);
    machine.act(&Wish::DeleteItems(SOURCE, vec![Itm(0), Itm(1), Itm(2)]));
    assert_eq!(machine.totals(), (1, 0, 0));
    machine.server.add_item(SOURCE);
    machine.sync();
    machine.send(1);
    for _ in 0..3 {
        machine.sync();
        assert_eq!(machine.shown_to(Who::Anna).items.keys().collect::<Vec<_>>(), [&Itm(3)]);
        assert_eq!(machine.totals(), (1, 1, 1));
    }
    assert!(machine.rows().is_empty());
}

#[test]
fn the_items_of_one_act_are_one_call_with_an_outcome_each() {
    let mut store = new_store();
    let mut machine = with_sources(&mut store, &[4]);
    machine.act(&Wish::DeleteItems(SOURCE, vec![Itm(0), Itm(1)]));
    machine.act(&Wish::DeleteItems(SOURCE, vec![Itm(1), Itm(2)]));
    let rows: Vec<Vec<_>> = machine.ready().iter().map(|batch| batch.rows.iter().map(|row| row.id).collect()).collect();
    assert_eq!(rows, [[1, 2]]);
    machine.attempt();
    machine.perform(0, 0b01, 0);
    machine.end_last(Ending::Refused);
    assert_eq!(machine.states(), [(1, ActState::Refused), (3, ActState::Waiting)]);
    let shown = machine.shown_to(Who::Anna);
    assert_eq!(shown.items.keys().collect::<Vec<_>>(), [&Itm(1), &Itm(2), &Itm(3)]);
    assert!(!shown.items[&Itm(1)].being_deleted && shown.items[&Itm(2)].being_deleted);
}

#[test]
fn a_sources_deletion_goes_first_and_ends_its_other_rows() {
    let mut store = new_store();
    let mut machine = with_sources(&mut store, &[2]);
    machine.act(&Wish::Star(vec![SOURCE]));
    machine.act(&Wish::Seen(SOURCE, vec![Itm(0)]));
    machine.act(&Wish::DeleteItems(SOURCE, vec![Itm(1)]));
    machine.login(Who::Ben);
    machine.act(&Wish::Star(vec![SOURCE]));
    machine.login(Who::Anna);
    machine.delete(SOURCE);
    machine.attempt();
    assert_eq!(machine.running[0].act, 5);
    machine.end_last(UNKNOWN);
    assert_eq!(machine.due(), (0, Some(Duration::from_secs(5))), "the others wait for it");
    machine.pass(Duration::from_secs(5));
    machine.send(0);
    assert_eq!(machine.rows(), [(5, "confirmed".to_owned())]);
}

#[test]
fn a_refused_deletion_brings_the_source_back_and_lets_its_other_rows_go_on() {
    let mut store = new_store();
    let mut machine = with_sources(&mut store, &[1]);
    machine.act(&Wish::Star(vec![SOURCE]));
    machine.delete(SOURCE);
    assert_eq!(machine.totals(), (0, 0, 0));
    machine.send_in_vain(Ending::Refused);
    assert!(!machine.being_deleted(Who::Anna, SOURCE));
    assert_eq!(machine.totals(), (1, 1, 1));
    machine.send(0);
    assert!(machine.server.is_there(What::Star(SOURCE)));
    assert_eq!(machine.states(), [(2, ActState::Refused)]);
}

/// Case D5: without effect at the server, and all the same no refusal.
#[test]
fn d5_a_session_that_is_over_does_not_undo_a_deletion() {
    let mut store = new_store();
    let mut machine = with_sources(&mut store, &[0]);
    machine.delete(SOURCE);
    machine.send_in_vain(Ending::NoEffect);
    machine.logout();
    assert!(machine.being_deleted(Who::Anna, SOURCE));
    machine.login(Who::Anna);
    assert_eq!(machine.due(), (1, None));
    assert_eq!(machine.states(), [(1, ActState::Waiting)]);
}

#[test]
fn nothing_of_a_record_is_kept_once_its_deletion_is_confirmed() {
    let mut store = new_store();
    let mut machine = with_sources(&mut store, &[2, 2]);
    machine.server.perform(What::Seen(SOURCE, Itm(0)), super::server::By::Colleague(Who::Anna), 0);
    machine.sync();
    machine.delete(SOURCE);
    machine.send(FOR_EVER);
    machine.act(&Wish::DeleteItems(OTHER, vec![Itm(3)]));
    machine.send(FOR_EVER);
    let kept = |machine: &mut Machine<'_>| -> i64 {
        machine.read(|transaction| {
            Ok(transaction.query_row(
                "SELECT (SELECT count(*) FROM server_source WHERE designation IS NOT NULL OR starred IS NOT NULL)
                      + (SELECT count(*) FROM server_submission WHERE source_id IS NOT NULL OR size_bytes IS NOT NULL)
                      + (SELECT count(*) FROM server_reply WHERE source_id IS NOT NULL OR size_bytes IS NOT NULL)
                      + (SELECT count(*) FROM server_submission_seen) + (SELECT count(*) FROM server_reply_seen)",
                [],
                |row| row.get(0),
            )?)
        })
    };
    assert_eq!(kept(&mut machine), 2, "the other source and its other item");
    // A record that changes afterwards comes as a whole, and goes again.
    machine.server.perform(What::Seen(OTHER, Itm(2)), super::server::By::Colleague(Who::Ben), 0);
    for _ in 0..2 {
        machine.sync();
        assert_eq!(kept(&mut machine), 3, "and a colleague's mark");
    }
}

/// Case D1: listed for three snapshots and an hour.
#[test]
fn d1_what_the_server_does_not_delete_is_told_once() {
    let mut store = new_store();
    let mut machine = with_sources(&mut store, &[1]);
    machine.delete(SOURCE);
    machine.send(FOR_EVER);
    for _ in 0..5 {
        machine.sync();
    }
    assert!(machine.states().is_empty(), "five snapshots, and no hour");
    machine.pass(Duration::from_secs(3_599));
    machine.sync();
    assert!(machine.states().is_empty());
    machine.pass(Duration::from_secs(1));
    machine.sync();
    assert_eq!(machine.states(), [(1, ActState::NotDeleted)]);
    assert_eq!(machine.read(outbox::counts).not_deleted, 1);
    assert_eq!(machine.source(Who::Anna, SOURCE), None, "and it is not shown again by itself");
    // The machine compares what each snapshot tells: nothing more here.
    machine.sync();
}

#[test]
fn an_hour_alone_tells_nothing() {
    let mut store = new_store();
    let mut machine = with_sources(&mut store, &[1]);
    machine.delete(SOURCE);
    machine.send(FOR_EVER);
    machine.pass(Duration::from_secs(7_200));
    machine.sync();
    machine.sync();
    assert!(machine.states().is_empty());
    machine.sync();
    assert_eq!(machine.states(), [(1, ActState::NotDeleted)]);
}

fn not_deleted(machine: &mut Machine<'_>) {
    machine.delete(SOURCE);
    machine.send(FOR_EVER);
    for _ in 0..3 {
        machine.pass(Duration::from_secs(1_800));
        machine.sync();
    }
    assert_eq!(machine.states(), [(1, ActState::NotDeleted)]);
}

#[test]
fn restored_it_is_shown_again_with_the_next_snapshot() {
    let mut store = new_store();
    let mut machine = with_sources(&mut store, &[2]);
    not_deleted(&mut machine);
    machine.deal(Deal::Restore, 1);
    assert!(machine.rows().is_empty());
    machine.sync();
    assert!(!machine.being_deleted(Who::Anna, SOURCE));
    assert_eq!(machine.totals(), (1, 2, 2));
}

#[test]
fn a_snapshot_that_was_asked_for_before_the_restore_does_not_spoil_it() {
    let mut store = new_store();
    let mut machine = with_sources(&mut store, &[2]);
    not_deleted(&mut machine);
    machine.ask_snapshot();
    machine.list_sources();
    machine.list_items();
    machine.deal(Deal::Restore, 1);
    machine.apply();
    machine.sync();
    assert_eq!(machine.totals(), (1, 2, 2));
}

/// A retried deletion was sent before: it cannot be taken for unsent, and where it is refused in the end, what is listed
/// must show again.
#[test]
fn retried_it_is_being_deleted_again_and_a_refusal_brings_it_back() {
    let mut store = new_store();
    let mut machine = with_sources(&mut store, &[2]);
    not_deleted(&mut machine);
    machine.deal(Deal::Retry, 1);
    assert_eq!(machine.states(), [(1, ActState::Unconfirmed)]);
    machine.deal(Deal::Cancel, 1);
    machine.sync();
    assert!(machine.being_deleted(Who::Anna, SOURCE));
    machine.send_in_vain(Ending::Refused);
    assert!(!machine.being_deleted(Who::Anna, SOURCE));
    assert_eq!(machine.totals(), (1, 2, 2));
}

/// What dom0 refuses while it is being sent may be done all the same: then it is done.
#[test]
fn a_deletion_that_the_server_has_made_is_confirmed_though_dom0_refused_the_next_call() {
    let mut store = new_store();
    let mut machine = with_sources(&mut store, &[0, 0]);
    machine.act(&Wish::DeleteSources(vec![SOURCE, OTHER]));
    machine.attempt();
    machine.open.clear();
    machine.choose(0, Opening::Refused);
    assert_eq!(machine.states(), [(1, ActState::Refused), (1, ActState::Refused)]);
    machine.perform_last();
    machine.end_last(Ending::Answered);
    assert_eq!(machine.source(Who::Anna, SOURCE), None);
    assert!(!machine.being_deleted(Who::Anna, OTHER));
}

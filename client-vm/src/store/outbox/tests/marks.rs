//! Stars and seen marks.

use std::time::Duration;

use control::ActState;

use super::super as outbox;
use super::hands::with_sources;
use super::machine::{Ending, Opening};
use super::world::{Damage, Itm, Src, What, Who, Wish, new_store};

const SOURCE: Src = Src(0);

fn star() -> Wish {
    Wish::Star(vec![SOURCE])
}

fn unstar() -> Wish {
    Wish::Unstar(vec![SOURCE])
}

/// Case D8.
#[test]
fn d8_the_last_of_acts_that_wait_counts_and_is_the_only_one_sent() {
    let mut store = new_store();
    let mut machine = with_sources(&mut store, &[0]);
    machine.act(&star());
    machine.act(&unstar());
    assert!(!machine.starred(Who::Anna, SOURCE));
    assert_eq!(machine.states(), [(2, ActState::Waiting)]);
    machine.send(0);
    machine.sync();
    assert!(machine.rows().is_empty());
}

/// Case D8.
#[test]
fn d8_an_act_behind_one_that_is_being_sent_waits_for_it_and_wins() {
    let mut store = new_store();
    let mut machine = with_sources(&mut store, &[0]);
    machine.act(&star());
    machine.attempt();
    machine.act(&unstar());
    assert_eq!(machine.states(), [(1, ActState::Running), (2, ActState::Waiting)]);
    assert_eq!(machine.due(), (0, None));
    machine.perform_last();
    machine.end_last(Ending::Answered);
    assert!(!machine.starred(Who::Anna, SOURCE), "confirmed, and undone by what is still to be sent");
    machine.send(0);
    machine.sync();
    assert!(!machine.starred(Who::Anna, SOURCE));
    assert!(machine.rows().is_empty());
}

/// Case D8.
#[test]
fn d8_an_act_behind_one_of_which_nobody_knows_waits_for_it() {
    let mut store = new_store();
    let mut machine = with_sources(&mut store, &[0]);
    machine.act(&star());
    machine.send_in_vain(Ending::Fault { retry_after: None });
    machine.act(&unstar());
    assert_eq!(machine.states(), [(1, ActState::Unconfirmed), (2, ActState::Waiting)]);
    assert_eq!(machine.due(), (0, Some(Duration::from_secs(5))));
    machine.pass(Duration::from_secs(5));
    machine.send(0);
    machine.send(0);
    assert!(!machine.starred(Who::Anna, SOURCE));
}

#[test]
fn an_act_that_changes_nothing_is_not_sent() {
    let mut store = new_store();
    let mut machine = with_sources(&mut store, &[0]);
    machine.act(&unstar());
    machine.act(&star());
    machine.act(&star());
    assert_eq!(machine.states(), [(1, ActState::Waiting)]);
}

#[test]
fn a_refused_star_shows_no_more_and_is_replaced_by_the_next() {
    let mut store = new_store();
    let mut machine = with_sources(&mut store, &[0]);
    machine.act(&star());
    assert!(machine.starred(Who::Anna, SOURCE));
    machine.send_in_vain(Ending::Refused);
    assert!(!machine.starred(Who::Anna, SOURCE));
    assert_eq!(machine.states(), [(1, ActState::Refused)]);
    machine.act(&star());
    assert_eq!(machine.states(), [(2, ActState::Waiting)]);
}

/// Case S5.
#[test]
fn s5_a_star_does_not_go_back_whatever_the_order() {
    // Which of the three comes when: the list is read, the star is performed, its answer arrives; the snapshot is applied
    // last, or before the answer.
    for (listed_first, applied_before_answer) in [(true, true), (true, false), (false, true), (false, false)] {
        let mut store = new_store();
        let mut machine = with_sources(&mut store, &[0]);
        machine.act(&star());
        machine.attempt();
        machine.ask_snapshot();
        if listed_first {
            machine.list_sources();
            machine.perform_last();
        } else {
            machine.perform_last();
            machine.list_sources();
        }
        machine.list_items();
        if applied_before_answer {
            machine.apply();
            assert!(machine.starred(Who::Anna, SOURCE));
            machine.end_last(Ending::Answered);
        } else {
            machine.end_last(Ending::Answered);
            machine.apply();
        }
        assert!(machine.starred(Who::Anna, SOURCE));
        machine.sync();
        assert!(machine.starred(Who::Anna, SOURCE));
        assert!(machine.rows().is_empty());
    }
}

#[test]
fn a_colleagues_later_unstar_shows_with_a_snapshot_asked_for_after_the_confirmation() {
    let mut store = new_store();
    let mut machine = with_sources(&mut store, &[0]);
    machine.act(&star());
    machine.send(0);
    machine.colleague(What::Unstar(SOURCE));
    assert!(machine.starred(Who::Anna, SOURCE));
    machine.sync();
    assert!(!machine.starred(Who::Anna, SOURCE));
}

#[test]
fn a_snapshot_asked_for_after_the_attempt_settles_a_star_of_which_nobody_knew() {
    let mut store = new_store();
    let mut machine = with_sources(&mut store, &[0]);
    machine.act(&star());
    machine.attempt();
    machine.perform_last();
    machine.crash();
    machine.login(Who::Anna);
    assert_eq!(machine.states(), [(1, ActState::Unconfirmed)]);
    machine.sync();
    assert!(machine.rows().is_empty());
    assert!(machine.starred(Who::Anna, SOURCE));
}

/// Case D9: the call has room for 512.
#[test]
fn d9_marks_go_in_batches_of_unseen_items() {
    let mut store = new_store();
    let mut machine = with_sources(&mut store, &[600]);
    machine.colleague(What::Seen(SOURCE, Itm(3)));
    machine.server.perform(What::Seen(SOURCE, Itm(5)), super::server::By::Colleague(Who::Anna), 0);
    machine.sync();
    machine.act(&Wish::Seen(SOURCE, (0..600).map(Itm).collect()));
    assert_eq!(machine.totals(), (1, 600, 0));
    // Ben's mark is not Anna's; her own of another device is.
    let named = machine.rows.values().map(|(_, what)| what.item().unwrap());
    assert_eq!(named.filter(|item| matches!(item.0, 3 | 5)).collect::<Vec<_>>(), [Itm(3)]);
    assert_eq!(machine.ready()[0].rows.len(), 512);
    machine.send(0);
    assert_eq!(machine.ready()[0].rows.len(), 599 - 512);
    machine.send(0);
    machine.sync();
    assert!(machine.rows().is_empty());
}

/// Case D9.
#[test]
fn d9_what_came_after_the_look_stays_unread() {
    let mut store = new_store();
    let mut machine = with_sources(&mut store, &[2]);
    machine.server.add_item(SOURCE);
    machine.act(&Wish::Seen(SOURCE, vec![Itm(0), Itm(1)]));
    machine.send(0);
    machine.sync();
    let unread = [0, 1, 2].map(|item| machine.item(Who::Anna, Itm(item)).unwrap().unread);
    assert_eq!(unread, [false, false, true]);
}

/// Case D9.
#[test]
fn d9_an_item_that_is_gone_does_not_hold_up_the_rest() {
    let mut store = new_store();
    let mut machine = with_sources(&mut store, &[2]);
    machine.act(&Wish::Seen(SOURCE, vec![Itm(0), Itm(1)]));
    machine.colleague(What::DeleteItem(SOURCE, Itm(0)));
    machine.send(0);
    assert!(machine.states().is_empty());
    assert!(machine.server.has_seen(Itm(1), Who::Anna));
}

/// The source is shown on for a reply that was not sent, and no list names it any more.
#[test]
fn what_is_confirmed_about_a_source_that_is_only_kept_ends() {
    let mut store = new_store();
    let mut machine = with_sources(&mut store, &[1]);
    machine.act(&star());
    machine.send(0);
    machine.act(&Wish::Seen(SOURCE, vec![Itm(0)]));
    machine.send(0);
    machine.act(&Wish::Reply(SOURCE, Itm::answer(0)));
    machine.colleague(What::DeleteSource(SOURCE));
    machine.sync();
    assert!(machine.source(Who::Anna, SOURCE).is_some(), "kept for the reply");
    assert_eq!(machine.rows(), [(3, "refused".to_owned())]);
}

#[test]
fn marks_of_several_acts_go_together_and_those_that_wait_for_their_time_follow() {
    let mut store = new_store();
    let mut machine = with_sources(&mut store, &[3]);
    machine.act(&Wish::Seen(SOURCE, vec![Itm(0)]));
    machine.act(&Wish::Seen(SOURCE, vec![Itm(1), Itm(2)]));
    machine.attempt();
    machine.perform(0, 0b101, 0);
    machine.end_last(Ending::Answered);
    assert_eq!(machine.states(), [(2, ActState::Unconfirmed)]);
    assert_eq!(machine.due(), (0, Some(Duration::from_secs(5))));
}

#[test]
fn a_star_does_not_overtake_a_mark_of_its_source_and_those_of_others_do() {
    let mut store = new_store();
    let mut machine = with_sources(&mut store, &[2, 0]);
    machine.act(&Wish::Seen(SOURCE, vec![Itm(0)]));
    machine.act(&star());
    machine.act(&Wish::Seen(SOURCE, vec![Itm(1)]));
    machine.act(&Wish::Star(vec![Src(1)]));
    let rows: Vec<Vec<_>> = machine.ready().iter().map(|batch| batch.rows.iter().map(|row| row.id).collect()).collect();
    assert_eq!(rows, [vec![1], vec![4]]);
}

#[test]
fn a_submission_and_a_reply_with_one_id_are_two() {
    let mut store = new_store();
    let mut machine = with_sources(&mut store, &[2]);
    assert_eq!(Itm(0).id().as_str(), Itm(1).id().as_str());
    machine.act(&Wish::Seen(SOURCE, vec![Itm(1)]));
    assert!(machine.item(Who::Anna, Itm(0)).unwrap().unread);
    assert!(!machine.item(Who::Anna, Itm(1)).unwrap().unread);
    machine.act(&Wish::DeleteItems(SOURCE, vec![Itm(0)]));
    machine.send(0);
    machine.send(0);
    assert!(machine.item(Who::Anna, Itm(0)).is_none());
    assert!(!machine.item(Who::Anna, Itm(1)).unwrap().unread);
}

#[test]
fn what_is_not_shown_or_on_its_way_out_is_not_acted_on() {
    let mut store = new_store();
    let mut machine = with_sources(&mut store, &[1, 1]);
    machine.delete(Src(1));
    let deleted = format!("the source {} is being deleted", Src(1).id());
    assert_eq!(machine.act_error(&Wish::Star(vec![SOURCE, Src(1)])), deleted);
    assert_eq!(machine.act_error(&Wish::Seen(Src(1), vec![Itm(1)])), deleted);
    assert_eq!(machine.act_error(&Wish::Star(vec![SOURCE, Src(7)])), format!("there is no source {}", Src(7).id()));
    let elsewhere = format!("there is no item {} in this conversation", Itm(1).id());
    assert_eq!(machine.act_error(&Wish::Seen(SOURCE, vec![Itm(0), Itm(1)])), elsewhere);
    assert_eq!(machine.act_error(&Wish::DeleteItems(SOURCE, vec![Itm(0), Itm(1)])), elsewhere);
    let bounds = "an act names 1 to 2048 sources or items";
    assert_eq!(machine.act_error(&Wish::Star(Vec::new())), bounds);
    assert_eq!(machine.act_error(&Wish::Seen(SOURCE, (0..2_049).map(Itm).collect())), bounds);
}

/// Case D3, for marks: what dom0 refuses is refused, and nobody asks again.
#[test]
fn d3_marks_that_dom0_refuses_are_refused_all_of_them() {
    let mut store = new_store();
    let mut machine = with_sources(&mut store, &[1, 1]);
    machine.act(&Wish::Star(vec![SOURCE, Src(1)]));
    machine.act(&Wish::Seen(SOURCE, vec![Itm(0)]));
    machine.delete(Src(1));
    machine.choose(0, Opening::Refused);
    assert_eq!(
        machine.states(),
        [(1, ActState::Refused), (1, ActState::Refused), (3, ActState::Refused), (4, ActState::Waiting)]
    );
    assert!(!machine.starred(Who::Anna, SOURCE));
    assert!(machine.item(Who::Anna, Itm(0)).unwrap().unread);
    assert_eq!(machine.read(outbox::counts).refused, 3);
}

/// Case S5: what cannot be read, or is not named, says nothing of what was confirmed.
#[test]
fn s5_a_snapshot_that_cannot_read_a_record_takes_no_mark_back() {
    let unreadable = Damage { unreadable_source: Some(SOURCE), unreadable_item: Some(Itm(0)), ..Damage::default() };
    let nameless = Damage { nameless_source: Some(SOURCE), nameless_item: Some(Itm(0)), ..Damage::default() };
    for damage in [unreadable, nameless] {
        let mut store = new_store();
        let mut machine = with_sources(&mut store, &[1]);
        machine.act(&star());
        machine.act(&Wish::Seen(SOURCE, vec![Itm(0)]));
        machine.send(0);
        machine.send(0);
        for _ in 0..2 {
            machine.sync_with(damage.clone());
            assert!(machine.starred(Who::Anna, SOURCE), "{damage:?}");
            assert!(!machine.item(Who::Anna, Itm(0)).unwrap().unread, "{damage:?}");
        }
        machine.sync();
        assert!(machine.rows().is_empty());
        assert!(machine.starred(Who::Ben, SOURCE));
    }
}

/// Case S5: a star of which nobody knows is not taken for done since an old record, which could not be read since, has it.
#[test]
fn s5_a_record_that_cannot_be_read_shows_no_effect() {
    let mut store = new_store();
    let mut machine = with_sources(&mut store, &[0]);
    machine.act(&star());
    machine.send(0);
    machine.sync();
    machine.act(&unstar());
    machine.send(0);
    machine.act(&star());
    machine.send_in_vain(Ending::Fault { retry_after: None });
    machine.sync_with(Damage { unreadable_source: Some(SOURCE), ..Damage::default() });
    assert_eq!(machine.states(), [(3, ActState::Unconfirmed)]);
    machine.pass(Duration::from_secs(5));
    machine.send(0);
    machine.sync();
    assert!(machine.rows().is_empty() && machine.starred(Who::Anna, SOURCE));
}

/// One list without its object forgets no mark.
#[test]
fn one_list_without_its_object_forgets_no_mark() {
    let mut store = new_store();
    let mut machine = with_sources(&mut store, &[1]);
    machine.act(&star());
    machine.act(&Wish::Seen(SOURCE, vec![Itm(0)]));
    machine.sync_without(SOURCE);
    assert_eq!(machine.due(), (0, None));
    machine.sync();
    assert_eq!(machine.states(), [(1, ActState::Waiting), (2, ActState::Waiting)]);
    assert!(machine.starred(Who::Anna, SOURCE) && !machine.item(Who::Anna, Itm(0)).unwrap().unread);
    machine.send(0);
    machine.send(0);
    machine.sync();
    assert!(machine.rows().is_empty() && machine.starred(Who::Ben, SOURCE));
}

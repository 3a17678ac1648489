//! What the user does about acts.

use std::time::Duration;

use control::{ActId, ActState, ActStep, Deal};

use super::super as outbox;
use super::hands::with_sources;
use super::machine::{Ending, Opening};
use super::world::{Itm, Src, Who, Wish, new_store};

const SOURCE: Src = Src(0);
const UNKNOWN: Ending = Ending::Fault { retry_after: None };
const DEALS: [Deal; 4] = [Deal::Retry, Deal::Cancel, Deal::Dismiss, Deal::Restore];

#[test]
fn each_deal_is_for_its_own_states() {
    // Waiting, of unknown outcome, refused, confirmed: which deals are possible.
    let possible = [
        (Ending::NoEffect, vec![Deal::Retry, Deal::Cancel]),
        (UNKNOWN, vec![Deal::Retry]),
        (Ending::Refused, vec![Deal::Retry, Deal::Dismiss]),
        (Ending::Answered, vec![]),
    ];
    for (ending, possible) in possible {
        for deal in DEALS {
            let mut store = new_store();
            let mut machine = with_sources(&mut store, &[0]);
            machine.delete(SOURCE);
            machine.attempt();
            if ending == Ending::Answered {
                machine.perform_last();
            }
            machine.end_last(ending);
            let dealt = machine.deal(deal, 1);
            assert_eq!(dealt.is_some(), possible.contains(&deal), "{deal:?} after {ending:?}");
        }
    }
}

#[test]
fn the_errors_say_why_not() {
    let mut store = new_store();
    let mut machine = with_sources(&mut store, &[0, 0]);
    machine.delete(SOURCE);
    machine.act(&Wish::Star(vec![Src(1)]));
    assert_eq!(machine.deal_error(Deal::Dismiss, &[1]), "act 1 was not refused");
    let not_made = "act 1 is no deletion that the server has confirmed and not made";
    assert_eq!(machine.deal_error(Deal::Restore, &[1]), not_made);
    machine.send(0);
    assert_eq!(machine.deal_error(Deal::Retry, &[1]), "act 1 has nothing that could be tried again");
    assert_eq!(machine.deal_error(Deal::Cancel, &[1]), "act 1 has been sent, and can no longer be taken back");
    assert_eq!(machine.deal_error(Deal::Cancel, &[77]), "there is no act 77 of yours: `splitdrop queue` lists them");
    // Of several acts all or none.
    assert_eq!(machine.deal_error(Deal::Cancel, &[2, 77]), "there is no act 77 of yours: `splitdrop queue` lists them");
    machine.login(Who::Ben);
    assert_eq!(machine.deal_error(Deal::Cancel, &[2]), "there is no act 2 of yours: `splitdrop queue` lists them");
}

#[test]
fn what_is_taken_back_shows_no_more() {
    let mut store = new_store();
    let mut machine = with_sources(&mut store, &[2]);
    machine.act(&Wish::Star(vec![SOURCE]));
    machine.act(&Wish::Seen(SOURCE, vec![Itm(0)]));
    machine.act(&Wish::DeleteItems(SOURCE, vec![Itm(1)]));
    machine.delete(SOURCE);
    for act in 1..=4 {
        machine.deal(Deal::Cancel, act);
    }
    assert!(!machine.starred(Who::Anna, SOURCE));
    assert_eq!(machine.totals(), (1, 2, 2));
    assert!(machine.rows().is_empty());
}

#[test]
fn retry_makes_due_at_once_and_does_not_start_the_count_anew_for_what_was_sent() {
    let mut store = new_store();
    let mut machine = with_sources(&mut store, &[0]);
    machine.act(&Wish::Star(vec![SOURCE]));
    for wait in [5, 10] {
        machine.send_in_vain(UNKNOWN);
        assert_eq!(machine.due(), (0, Some(Duration::from_secs(wait))));
        machine.deal(Deal::Retry, 1);
        assert_eq!(machine.due(), (1, None));
    }
}

#[test]
fn a_refused_act_that_is_retried_shows_again() {
    let mut store = new_store();
    let mut machine = with_sources(&mut store, &[0]);
    machine.act(&Wish::Star(vec![SOURCE]));
    machine.send_in_vain(Ending::Refused);
    machine.deal(Deal::Retry, 1);
    assert!(machine.starred(Who::Anna, SOURCE));
    let entry = &machine.queue()[0];
    assert_eq!((&entry.state, entry.attempts), (&ActState::Waiting, 0));
}

/// An attempt before the refusal may have had an effect.
#[test]
fn a_refused_act_of_which_nobody_knew_before_cannot_be_taken_back_when_it_is_retried() {
    for by_dom0 in [true, false] {
        let mut store = new_store();
        let mut machine = with_sources(&mut store, &[0]);
        machine.act(&Wish::Star(vec![SOURCE]));
        machine.attempt();
        machine.perform_last();
        machine.end_last(UNKNOWN);
        machine.pass(Duration::from_secs(5));
        if by_dom0 {
            machine.choose(0, Opening::Refused);
        } else {
            machine.send_in_vain(Ending::Refused);
        }
        assert_eq!(machine.states(), [(1, ActState::Refused)]);
        machine.deal(Deal::Retry, 1);
        assert_eq!(machine.states(), [(1, ActState::Unconfirmed)]);
        machine.deal(Deal::Cancel, 1);
        assert_eq!(machine.states(), [(1, ActState::Unconfirmed)]);
    }
}

#[test]
fn a_dismissed_act_is_forgotten() {
    let mut store = new_store();
    let mut machine = with_sources(&mut store, &[0]);
    machine.act(&Wish::Star(vec![SOURCE]));
    machine.send_in_vain(Ending::Refused);
    machine.deal(Deal::Dismiss, 1);
    assert!(machine.rows().is_empty());
}

#[test]
fn a_refused_act_whose_object_is_gone_is_forgotten_by_itself() {
    let mut store = new_store();
    let mut machine = with_sources(&mut store, &[0]);
    machine.act(&Wish::Star(vec![SOURCE]));
    machine.send_in_vain(Ending::Refused);
    machine.sync();
    assert_eq!(machine.states(), [(1, ActState::Refused)]);
    machine.colleague(super::world::What::DeleteSource(SOURCE));
    machine.sync();
    machine.sync();
    assert!(machine.rows().is_empty());
}

#[test]
fn a_deal_with_part_of_an_act_tells_how_much_of_it() {
    let mut store = new_store();
    let mut machine = with_sources(&mut store, &[3, 1]);
    machine.act(&Wish::Star(vec![SOURCE, Src(1)]));
    machine.act(&Wish::Seen(SOURCE, vec![Itm(0), Itm(1), Itm(2)]));
    machine.attempt();
    let (who, acts) = (Who::Anna.id(), [ActId(3), ActId(1), ActId(1)]);
    let changes = machine.write(|transaction| outbox::deal(transaction, who, Deal::Cancel, &acts)).unwrap();
    let told: Vec<_> =
        changes.iter().map(|change| (change.act.0, change.source, change.objects, change.step.clone())).collect();
    let dealt = ActStep::Dealt(Deal::Cancel);
    assert_eq!(told, [(1, Src(1).id(), 1, dealt.clone()), (3, SOURCE.id(), 3, dealt)]);
    assert_eq!(machine.rows(), [(1, "attempted".to_owned())]);
}

//! Removals of what somebody here is about to delete, or has answered.

use super::*;

/// Cases D1 and D4: what can still be taken back was not asked for yet, and counts among what is lost; what was asked for and
/// not sent does not, and is deleted whatever becomes of the rest.
#[test]
fn a_deletion_that_can_be_taken_back_is_held_with_the_rest_and_can_be_taken_back_then() {
    let all = inbox(20);
    let mut inbox = Inbox::with(&all);
    let taken = inbox.act(&Act::DeleteSources { sources: (100..106).map(id).collect() }).unwrap().taken;
    let (now, grace, act) = (inbox.now(), Duration::from_secs(10), taken.act.unwrap());
    inbox.write(|transaction| outbox::give_grace(transaction, act, now, grace));
    let left = without(&all, 100..106);
    assert_eq!(inbox.sync(&left), (100..106).collect::<Vec<_>>());
    inbox.now += 60_000_000;
    inbox.sync(&left);
    let now = inbox.now();
    let ready = inbox.write(|transaction| outbox::ready(transaction, anna(), now, &HashSet::new(), &HashSet::new()));
    assert_eq!(ready.batches, [], "nothing is sent about what is held");
    let undone = inbox.write(|transaction| Ok(outbox::undo(transaction, anna(), &[act]).unwrap()));
    assert!(undone.iter().all(|one| one.designation.is_some()), "{undone:?}");
    inbox.settle(RemovalVerdict::Reject, &[100]);
    assert_eq!(inbox.doomed(), [] as [u32; 0]);
    inbox.sync(&all);
    assert_eq!(inbox.shown().len(), 20);

    // Their time is over: they are deleted, and nothing is held.
    inbox.act(&Act::DeleteSources { sources: (100..106).map(id).collect() }).unwrap();
    assert!(inbox.sync(&left).is_empty());
}

/// Case D4: the last word is the one that keeps it, also over a deletion that could still be taken back when it was held.
#[test]
fn d4_what_is_rejected_is_not_erased_by_a_deletion_from_before() {
    let all = inbox(20);
    let mut inbox = Inbox::with(&all);
    let taken = inbox.act(&Act::DeleteSources { sources: (100..106).map(id).collect() }).unwrap().taken;
    let (now, act) = (inbox.now(), taken.act.unwrap());
    inbox.write(|transaction| outbox::give_grace(transaction, act, now, Duration::from_secs(10)));
    let left = without(&all, 100..106);
    inbox.sync(&left);
    inbox.now += 60_000_000;
    inbox.sync(&left);
    // Another part of the same act has a call: that is no word about what is held.
    let open = HashSet::from([act]);
    let ready = |inbox: &mut Inbox| {
        let now = inbox.now();
        inbox.write(|transaction| outbox::ready(transaction, anna(), now, &HashSet::new(), &open)).batches.len()
    };
    let queue = |inbox: &mut Inbox| {
        let now = inbox.now();
        let lane = outbox::Lane { signed_in: true, ..outbox::Lane::default() };
        inbox.write(|transaction| outbox::queue(transaction, now, &lane))
    };
    assert_eq!(ready(&mut inbox), 0);
    for entry in queue(&mut inbox) {
        assert_eq!(entry.state, control::ActState::Waiting);
        assert!(entry.reason.unwrap().contains("splitdrop removals"), "what it waits for");
    }
    inbox.settle(RemovalVerdict::Reject, &[100, 101, 102, 103, 104]);
    assert_eq!(ready(&mut inbox), 0);
    confirm_all(&mut inbox);
    inbox.sync(&left);
    assert_eq!(inbox.doomed(), [] as [u32; 0]);
    let refused = |inbox: &mut Inbox| {
        let refused = queue(inbox).into_iter().filter(|entry| entry.state == control::ActState::Refused);
        refused.map(|entry| (number_of(&entry.source), entry.reason.unwrap())).collect::<Vec<_>>()
    };
    assert_eq!(refused(&mut inbox), (100..105).map(|source| (source, REJECTED.to_owned())).collect::<Vec<_>>());
    // Whoever wants it gone all the same says so.
    inbox.write(|transaction| Ok(outbox::deal(transaction, anna(), control::Deal::Retry, &[act]).unwrap()));
    assert_eq!(ready(&mut inbox), 5, "all but what is held");
    confirm_all(&mut inbox);
    assert_eq!(inbox.doomed().len(), 10);
}

/// Case D4: of items that are held alone, and whose deletion could still be taken back.
#[test]
fn d4_a_rejected_item_is_not_erased_by_a_deletion_from_before_and_others_are() {
    let all = inbox(20);
    let mut inbox = Inbox::with(&all);
    let items = [id::<protocol::value::SubmissionId>(10_000)].map(ItemId::Submission).to_vec();
    let taken = inbox.act(&Act::DeleteItems { source: id(100), items }).unwrap().taken;
    let other = inbox.act(&Act::DeleteSources { sources: vec![id(110)] }).unwrap().taken;
    let now = inbox.now();
    for act in [taken.act.unwrap(), other.act.unwrap()] {
        inbox.write(|transaction| outbox::give_grace(transaction, act, now, Duration::from_secs(10)));
    }
    let emptied: Lists =
        all.iter().map(|(source, items)| (*source, if *source < 106 { Vec::new() } else { items.clone() })).collect();
    assert_eq!(inbox.sync(&emptied), (100..106).collect::<Vec<_>>());
    inbox.settle(RemovalVerdict::Reject, &[100]);
    inbox.now += 60_000_000;
    confirm_all(&mut inbox);
    inbox.sync(&emptied);
    assert_eq!(inbox.doomed(), [11_000, 11_001]);
}

/// Case D1: a deletion that was not sent when its source was held, and whose removal was accepted, is not forgotten by a list
/// that has the source again.
#[test]
fn d1_what_was_to_be_deleted_is_to_be_deleted_after_an_accepted_removal_too() {
    let all = inbox(20);
    let mut inbox = Inbox::with(&all);
    let left = without(&all, 100..106);
    let taken = inbox.act(&Act::DeleteSources { sources: vec![id(103)] }).unwrap().taken;
    let (now, act) = (inbox.now(), taken.act.unwrap());
    inbox.write(|transaction| outbox::give_grace(transaction, act, now, Duration::from_secs(10)));
    inbox.sync(&left);
    inbox.settle(RemovalVerdict::Accept, &[103]);
    let states = |inbox: &mut Inbox| {
        inbox.write(|transaction| {
            let mut select = transaction.prepare("SELECT state FROM outbox WHERE kind = 'delete_source'")?;
            Ok(select.query_map([], |row| row.get::<_, String>(0))?.collect::<Result<Vec<_>, _>>()?)
        })
    };
    assert_eq!(states(&mut inbox), ["confirmed"], "set aside");
    inbox.sync(&all);
    assert_eq!(states(&mut inbox), ["pending"]);
    let deletion = inbox.write(view::sources).into_iter().find(|row| row.id == id(103)).unwrap().deletion;
    assert_eq!(deletion, control::Deletion::Pending);
}

/// Cases R3 and D4: of a source that is taken off the list, and was answered, nothing stays but the reply.
#[test]
fn d4_a_source_that_is_kept_for_a_reply_keeps_nothing_else() {
    let all = inbox(20);
    let mut inbox = Inbox::with(&all);
    inbox.pin_keys();
    let (text, source) = (|text: &str| ReplyText::try_new(text).unwrap(), id(100));
    inbox.act(&Act::Reply { source, reply: id::<ReplyId>(7), text: text("waits") }).unwrap();
    let now = inbox.now();
    inbox.write(|transaction| drafts::keep(transaction, anna(), source, Some(&text("begun")), now));
    let left = without(&all, [100]);
    assert!(inbox.sync(&left).is_empty());
    assert_eq!(inbox.doomed(), [10_000, 10_001]);
    assert_eq!(inbox.write(|transaction| drafts::load(transaction, source)), None);
    let row = inbox.write(view::sources).into_iter().find(|row| row.id == source).unwrap();
    assert_eq!((row.presence, row.counts.messages, row.counts.replies), (Presence::Gone, 0, 0));
    let keys: u32 = inbox.write(|transaction| {
        let sql = "SELECT count(*) FROM local_key WHERE source_id = ?1 AND armored <> ''";
        Ok(transaction.query_row(sql, [source.as_str()], |row| row.get(0))?)
    });
    assert_eq!(keys, 0);
    assert_eq!(inbox.write(held), [], "nobody is asked about it");
    // It does not come to hold others, and goes with its reply.
    assert!(inbox.sync(&without(&all, [100, 101])).is_empty());
    let act = control::ActId(1);
    inbox.write(|transaction| Ok(outbox::deal(transaction, anna(), control::Deal::Dismiss, &[act]).unwrap()));
    assert!(!inbox.shown().contains_key(&100));
}

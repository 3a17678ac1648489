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

use super::*;

const NOW: Timestamp = Timestamp::constant(1_700_000_000, 0);
const LATER: Timestamp = Timestamp::constant(1_700_000_060, 0);

fn journalist(id: &str, username: &str) -> Journalist {
    Journalist {
        id: id.into(),
        username: username.to_owned(),
        first_name: None,
        last_name: None,
        is_admin: false,
        account: None,
        last_login: None,
    }
}

/// A world with a source `s`, and journalists `a` and `deleted`.
fn world() -> World {
    let mut world = World::new();
    world.add_journalist(journalist("a", "ann")).unwrap();
    world.add_journalist(journalist("d", DELETED_JOURNALIST)).unwrap();
    world.add_source("s".into(), "level reef".to_owned(), None, NOW).unwrap();
    world
}

fn message(world: &mut World, id: &str) {
    world.add_submission(id.into(), &"s".into(), SubmissionKind::Message, 600, LATER).unwrap();
}

#[test]
fn items_of_all_kinds_share_one_numbering() {
    let mut world = world();
    message(&mut world, "m");
    world.add_reply("r".into(), &"s".into(), &"a".into(), 900).unwrap();
    world.add_submission("f".into(), &"s".into(), SubmissionKind::File, 700, LATER).unwrap();
    assert_eq!(world.submission("m").unwrap().filename, "1-level_reef-msg.gpg");
    assert_eq!(world.reply("r").unwrap().filename, "2-level_reef-reply.gpg");
    assert_eq!(world.submission("f").unwrap().filename, "3-level_reef-doc.gz.gpg");
    assert_eq!(world.source("s").unwrap().interaction_count, 3);
    assert_eq!(world.reply("r").unwrap().seen_by, ["a".into()]);
}

#[test]
fn a_source_is_heard_of_when_it_sends_and_not_when_it_is_answered() {
    let mut world = world();
    world.add_reply("r".into(), &"s".into(), &"a".into(), 900).unwrap();
    assert_eq!(world.source("s").unwrap().last_updated, Some(NOW));
    message(&mut world, "m");
    assert_eq!(world.source("s").unwrap().last_updated, Some(LATER));
}

#[test]
fn numbers_are_not_given_out_twice() {
    let mut world = world();
    message(&mut world, "m");
    world.delete_item(&"m".into()).unwrap();
    message(&mut world, "n");
    world.delete_conversation(&"s".into()).unwrap();
    assert_eq!(world.submissions().count(), 0);
    message(&mut world, "o");
    assert_eq!(world.submission("o").unwrap().filename, "3-level_reef-msg.gpg");
    let source = world.source("s").unwrap();
    assert_eq!(world.submissions_of(source).count(), 1);
}

#[test]
fn a_purge_leaves_nothing() {
    let mut world = world();
    message(&mut world, "m");
    world.add_reply("r".into(), &"s".into(), &"a".into(), 900).unwrap();
    world.purge_source(&"s".into()).unwrap();
    assert!(world.source("s").is_none());
    assert!(world.submission("m").is_none() && world.reply("r").is_none());
    assert_eq!(world.purge_source(&"s".into()), Err(WorldError::NoSource("s".into())));
}

#[test]
fn a_deleted_journalists_things_move() {
    let mut world = world();
    message(&mut world, "m");
    world.mark_seen(&"m".into(), &"a".into()).unwrap();
    world.mark_seen(&"m".into(), &"d".into()).unwrap();
    world.add_reply("r".into(), &"s".into(), &"a".into(), 900).unwrap();
    world.delete_journalist("ann").unwrap();
    assert_eq!(world.submission("m").unwrap().seen_by, ["d".into()]);
    assert_eq!(world.reply("r").unwrap().author, "d".into());
    assert!(world.journalist_named("ann").is_none());
    assert!(world.delete_journalist(DELETED_JOURNALIST).is_err());
}

#[test]
fn marks_are_made_once() {
    let mut world = world();
    message(&mut world, "m");
    world.mark_seen(&"m".into(), &"a".into()).unwrap();
    world.mark_seen(&"m".into(), &"a".into()).unwrap();
    assert_eq!(world.submission("m").unwrap().seen_by, ["a".into()]);
    assert_eq!(world.mark_seen(&"x".into(), &"a".into()), Err(WorldError::NoItem("x".into())));
    assert_eq!(world.mark_seen(&"m".into(), &"x".into()), Err(WorldError::NoJournalist("x".to_owned())));
}

#[test]
fn a_refused_change_changes_nothing() {
    let mut world = world();
    message(&mut world, "m");
    let revision = world.revision();
    let again = world.add_submission("m".into(), &"s".into(), SubmissionKind::Message, 1, LATER);
    assert_eq!(again, Err(WorldError::TakenId("m".into())));
    assert_eq!(world.source("s").unwrap().interaction_count, 1);
    assert!(world.delete_item(&"x".into()).is_err());
    assert!(world.add_reply("r".into(), &"s".into(), &"x".into(), 1).is_err());
    assert_eq!(world.revision(), revision);
}

#[test]
fn every_change_moves_the_revision() {
    let mut world = world();
    let mut last = world.revision();
    let mut moved = |world: &World| {
        let moved = world.revision() != last;
        last = world.revision();
        moved
    };
    message(&mut world, "m");
    assert!(moved(&world));
    world.mark_seen(&"m".into(), &"a".into()).unwrap();
    assert!(moved(&world));
    world.mark_downloaded(&"m".into()).unwrap();
    assert!(moved(&world));
    world.edit_source(&"s".into(), |source| source.is_starred = true).unwrap();
    assert!(moved(&world));
    world.delete_item(&"m".into()).unwrap();
    assert!(moved(&world));
    world.note_login(&"a".into(), NOW);
    assert!(!moved(&world), "no list shows a sign-in");
}

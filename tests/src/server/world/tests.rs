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
    world.add_reply("r".into(), &"s".into(), &"a".into(), SMALLEST_REPLY).unwrap();
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
    world.add_reply("r".into(), &"s".into(), &"a".into(), SMALLEST_REPLY).unwrap();
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
    world.add_reply("r".into(), &"s".into(), &"a".into(), SMALLEST_REPLY).unwrap();
    world.purge_source(&"s".into()).unwrap();
    assert!(world.source("s").is_none());
    assert!(world.submission("m").is_none() && world.reply("r").is_none());
    assert_eq!(world.purge_source(&"s".into()), Err(WorldError::NoSource("s".into())));
}

#[test]
fn the_purge_takes_what_is_marked_and_nothing_else() {
    let mut world = world();
    for (id, state) in [("t", SourceState::MarkedDeleted), ("u", SourceState::Pending)] {
        world.add_source(id.into(), "deep well".to_owned(), None, NOW).unwrap();
        world.edit_source(&id.into(), |source| source.state = state).unwrap();
    }
    world.add_submission("m".into(), &"t".into(), SubmissionKind::Message, 600, LATER).unwrap();
    assert_eq!(world.purge(), 1);
    let left: Vec<_> = world.sources().map(|source| source.id.as_str()).collect();
    assert_eq!(left, ["s", "u"]);
    assert!(world.submission("m").is_none());
    assert_eq!(world.purge(), 0);
}

#[test]
fn acts_of_journalists_count_what_they_change() {
    let mut world = world();
    message(&mut world, "m");
    message(&mut world, "n");
    world.add_reply("m".into(), &"s".into(), &"d".into(), SMALLEST_REPLY).unwrap();
    let ann = RecordId::from("a");
    let revision = world.revision();
    for _ in 0..2 {
        world.star_by_journalist("s", true).unwrap();
        world.see_submission("m", &ann).unwrap();
        world.see_reply("m", &ann).unwrap();
    }
    assert_eq!(world.revision(), revision + 3, "what changes nothing leaves lists as they are");
    assert_eq!(world.delete_submission_by_journalist("m"), Ok(Deletion::Clean));
    assert_eq!(world.delete_submission_by_journalist("m"), Err(WorldError::NoItem("m".into())));
    world.lose_file(&"m".into()).unwrap();
    assert_eq!(world.delete_conversation_by_journalist("s"), Ok(Deletion::FileMissing));
    world.delete_source_by_journalist("s").unwrap();
    assert_eq!(world.delete_source_by_journalist("s"), Err(WorldError::NoSource("s".into())));
    assert_eq!(world.see_submission("n", &ann), Err(WorldError::NoItem("n".into())));
    assert_eq!(world.see_reply("m", &"x".into()), Err(WorldError::NoJournalist("x".to_owned())));
    let (source, journalist) = (RecordId::from("s"), ann);
    let expected = [
        Change::StarSet { source: source.clone() },
        Change::SubmissionSeen { submission: "m".into(), journalist: journalist.clone() },
        Change::ReplySeen { reply: "m".into(), journalist },
        Change::SubmissionDeleted { submission: "m".into() },
        Change::SubmissionDeleted { submission: "n".into() },
        Change::ReplyDeleted { reply: "m".into() },
        Change::SourceDeleted { source },
    ];
    assert_eq!(world.changes(), expected.into_iter().collect());
}

#[test]
fn a_deleted_journalists_things_move() {
    let mut world = world();
    message(&mut world, "m");
    world.mark_seen(&"m".into(), &"a".into()).unwrap();
    world.mark_seen(&"m".into(), &"d".into()).unwrap();
    world.add_reply("r".into(), &"s".into(), &"a".into(), SMALLEST_REPLY).unwrap();
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
    let again = world.add_submission("m".into(), &"s".into(), SubmissionKind::Message, 600, LATER);
    assert_eq!(again, Err(WorldError::TakenId("m".into())));
    assert_eq!(world.source("s").unwrap().interaction_count, 1);
    assert!(world.delete_item(&"x".into()).is_err());
    assert!(world.add_reply("r".into(), &"s".into(), &"x".into(), SMALLEST_REPLY).is_err());
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

use std::collections::HashSet;

use super::*;

/// All that a world says, in one text.
fn everything(world: &World) -> String {
    let sources = world.sources().map(|source| {
        format!(
            "{} {} {:?} {} {:?} {} {:?}\n",
            source.id,
            source.designation,
            source.state,
            source.is_starred,
            source.last_updated,
            source.interaction_count,
            source.key.as_ref().map(|key| &key.fingerprint),
        )
    });
    let submissions = world.submissions().map(|item| format!("{item:?}\n"));
    let replies = world.replies().map(|reply| format!("{reply:?}\n"));
    let journalists = world.journalists().iter().map(|j| format!("{j:?}\n"));
    sources.chain(submissions).chain(replies).chain(journalists).collect()
}

#[test]
fn a_world_is_a_function_of_its_recipe() {
    let recipe = Recipe::new(60, 5);
    let once = everything(&recipe.generate().unwrap());
    assert_eq!(once, everything(&recipe.generate().unwrap()));
    let other = Recipe { seed: 2, ..recipe };
    assert_ne!(once, everything(&other.generate().unwrap()));
}

#[test]
fn a_seed_means_the_same_world_for_ever() {
    let world = Recipe::new(3, 2).generate().unwrap();
    let first = world.sources().next().unwrap();
    assert_eq!(format!("{} {}", first.id, first.designation), "9afcd44d-14cf-4bfe-b476-cf8a4baa5dc0 lilac stable");
}

#[test]
fn counts_are_exact() {
    for (sources, items) in [(0, 4), (1, 0), (1, 4), (120, 4)] {
        let recipe = Recipe::new(sources, items);
        let world = recipe.generate().unwrap();
        let count = |state| world.sources().filter(|s| s.state == state).count();
        assert_eq!(count(SourceState::Listed), recipe.sources as usize);
        assert_eq!(count(SourceState::Pending), recipe.pending as usize);
        assert_eq!(count(SourceState::MarkedDeleted), recipe.marked_deleted as usize);
        for source in world.sources() {
            let held = world.submissions_of(source).count() + world.replies_of(source).count();
            assert_eq!(held, items as usize);
            assert_eq!(source.interaction_count, u64::from(items));
        }
    }
}

#[test]
fn the_spread_has_everything_in_it() {
    let world = Recipe::new(100, 6).generate().unwrap();
    let sources = || world.sources();
    assert!(sources().any(|s| s.key.is_none()));
    assert!(sources().filter(|s| s.key.is_some()).count() > 80);
    assert!(sources().any(|s| s.is_starred) && sources().any(|s| !s.is_starred));
    let whole = |at: Timestamp| at.subsec_nanosecond() == 0;
    assert!(sources().any(|s| s.last_updated.is_some_and(whole)));
    assert!(sources().any(|s| !s.last_updated.is_some_and(whole)));

    let kinds: Vec<_> = world.submissions().map(|s| s.kind).collect();
    for kind in [SubmissionKind::Message, SubmissionKind::File, SubmissionKind::ZippedFile] {
        assert!(kinds.contains(&kind), "{kind:?}");
    }
    let marks: HashSet<_> = world.submissions().map(|s| s.seen_by.len()).collect();
    assert!(marks.is_superset(&HashSet::from([0, 1, 2])), "{marks:?}");
    assert!(world.submissions().any(|s| s.is_downloaded && s.seen_by.is_empty()));

    let authors: HashSet<_> = world.replies().map(|r| r.author.clone()).collect();
    assert_eq!(authors.len(), 3);
    assert!(authors.contains(&world.journalist_named(DELETED_JOURNALIST).unwrap().id));
    let names = world.journalists().iter().filter_map(|j| j.first_name.as_ref());
    assert!(names.clone().any(|name| !name.is_ascii()));
}

#[test]
fn nothing_happens_after_the_recipes_moment_and_sources_differ() {
    let recipe = Recipe::new(400, 4);
    let world = recipe.generate().unwrap();
    assert!(world.sources().all(|s| s.last_updated.unwrap() < recipe.until));
    let designations: HashSet<_> = world.sources().map(|s| s.designation.as_str()).collect();
    assert_eq!(designations.len(), world.sources().count());
}

use control::{Act, ReplyText};
use protocol::value::{Designation, JournalistId, OrderNumber, Timestamp, Username};
use protocol::{Journalist, Listed, Reply, Source, SourceKey, Submission};
use rusqlite::Connection;

use super::*;
use crate::store::outbox::{self, EnqueueError};
use crate::store::{migration, mirror, view};
use crate::sync::{Mirror, Plan, Snapshot};

fn id<I: std::str::FromStr<Err: std::fmt::Debug>>(number: u32) -> I {
    format!("{number:08}-0000-4000-8000-000000000000").parse().unwrap()
}

fn source() -> SourceId {
    id(10)
}

fn anna() -> JournalistId {
    id(1)
}

/// The fingerprint of a key by its letter.
fn fpr(key: char) -> Fingerprint {
    Fingerprint::try_new(key.to_string().repeat(40)).unwrap()
}

/// A key in one of its forms; `bad` is one to which nothing can be encrypted.
fn armored(key: char, form: &str) -> ArmoredKey {
    ArmoredKey::try_new(format!("-----BEGIN PGP PUBLIC KEY BLOCK-----\n{key}{form}")).unwrap()
}

/// The key that an armor says it is, and whether it can be used.
fn parse(armored: &ArmoredKey) -> (Fingerprint, bool) {
    let key = armored.as_str().lines().last().unwrap();
    (fpr(key.chars().next().unwrap()), !key.ends_with("bad"))
}

struct World {
    connection: Connection,
}

impl World {
    /// A source is listed, with no key.
    fn new() -> Self {
        let mut connection = Connection::open_in_memory().unwrap();
        migration::migrate(&mut connection).unwrap();
        let mut world = Self { connection };
        world.write(|transaction| mirror::store_journalist(transaction, anna(), &Username::try_new("anna").unwrap()));
        world.list(Some(None));
        world
    }

    fn write<T>(&mut self, work: impl FnOnce(&Transaction<'_>) -> Result<T, StoreError>) -> T {
        let transaction = self.connection.transaction().unwrap();
        let done = work(&transaction).unwrap();
        transaction.commit().unwrap();
        done
    }

    /// A snapshot: the source, with this key, or nothing.
    fn list(&mut self, source_and_key: Option<Option<SourceKey>>) {
        self.write(|transaction| {
            let known: Mirror = mirror::load_mirror(transaction)?;
            let mut sources = Snapshot::<Source>::default();
            if let Some(key) = source_and_key {
                let listed = Source {
                    id: source(),
                    designation: Designation::try_new("calm sea").unwrap(),
                    starred: false,
                    last_updated: Timestamp::try_new(5).unwrap(),
                    interactions: OrderNumber::try_new(1).unwrap(),
                    key,
                    version: None,
                };
                sources.observe(&known.sources, Listed::Readable(listed)).unwrap();
            }
            let plan = Plan {
                users: Snapshot::<Journalist>::default().diff(&known.users),
                sources: sources.diff(&known.sources),
                submissions: Snapshot::<Submission>::default().diff(&known.submissions),
                replies: Snapshot::<Reply>::default().diff(&known.replies),
            };
            mirror::apply(transaction, &plan)?;
            let hour = std::time::Duration::from_secs(3_600);
            outbox::after_snapshot(transaction, 1, Timestamp::try_new(9)?, hour, &plan)?;
            Ok(())
        });
    }

    /// The server offers a key, and claims a fingerprint of it.
    fn offer_as(&mut self, key: char, form: &str, claimed: char) {
        self.list(Some(Some(SourceKey { armored: armored(key, form), fingerprint: fpr(claimed) })));
    }

    fn offer(&mut self, key: char, form: &str) {
        self.offer_as(key, form, key);
    }

    /// What is offered is looked at; gives the problems that are new.
    fn look(&mut self) -> Vec<KeyProblem> {
        self.write(|transaction| {
            let mut problems = Vec::new();
            for offered in to_look_at(transaction, 10)? {
                problems.extend(note(transaction, &offered, &judge(&offered))?);
            }
            assert!(to_look_at(transaction, 10)?.is_empty());
            Ok(problems)
        })
    }

    /// How the key stands, which is what the list of sources shows.
    fn state(&mut self) -> KeyState {
        self.write(|transaction| {
            let state = state(transaction, source())?;
            for shown in view::sources(transaction)? {
                assert_eq!(shown.key, state);
            }
            match pinned(transaction, source())? {
                Ok((fingerprint, _)) => assert_eq!(state, KeyState::Pinned { fingerprint }),
                Err(other) => assert_eq!(other, state),
            }
            Ok(state)
        })
    }

    /// The pinned key, while it serves.
    fn pinned(&mut self) -> Option<ArmoredKey> {
        self.write(|transaction| Ok(pinned(transaction, source())?.ok().map(|(_, armored)| armored)))
    }

    fn trust(&mut self, fingerprint: char) -> Result<(), TrustError> {
        let transaction = self.connection.transaction().unwrap();
        let usable = |armored: &ArmoredKey| match parse(armored) {
            (own, true) => Ok(own),
            (_, false) => Err("it has expired".to_owned()),
        };
        trust(&transaction, source(), &fpr(fingerprint), usable)?;
        transaction.commit().unwrap();
        Ok(())
    }

    fn reply(&mut self) -> Result<(), EnqueueError> {
        let transaction = self.connection.transaction().unwrap();
        let text = ReplyText::try_new("an answer").unwrap();
        let act = Act::Reply { source: source(), reply: id(70), text };
        outbox::enqueue(&transaction, anna(), &act, Timestamp::try_new(9).unwrap())?;
        transaction.commit().unwrap();
        Ok(())
    }

    fn held(&mut self) -> u64 {
        self.write(held)
    }
}

fn judge(offered: &Offered) -> Finding {
    let (own, usable) = parse(&offered.armored);
    let problem = if own != offered.claimed {
        KeyProblem::Mismatch
    } else if usable {
        return Finding::Good;
    } else {
        KeyProblem::Unusable
    };
    Finding::Bad { problem, fingerprint: Some(own), detail: format!("{problem:?}, in words") }
}

fn pinned_as(key: char) -> KeyState {
    KeyState::Pinned { fingerprint: fpr(key) }
}

fn held_back(problem: KeyProblem, pinned: Option<char>, offered: char) -> KeyState {
    let detail = if problem == KeyProblem::Changed { CHANGED.to_owned() } else { format!("{problem:?}, in words") };
    KeyState::Held { problem, pinned: pinned.map(fpr), offered: fpr(offered), detail }
}

#[test]
fn r4_replying_becomes_possible_when_a_snapshot_brings_the_key_and_it_was_looked_at() {
    let mut world = World::new();
    let no_key = world.reply().unwrap_err();
    assert!(matches!(&no_key, EnqueueError::NoKey(of) if *of == source()));
    assert!(no_key.to_string().contains("has no key yet"));
    world.offer('A', "1");
    let new = world.reply().unwrap_err();
    assert!(matches!(&new, EnqueueError::KeyHeld { source_id, .. } if *source_id == source()));
    assert!(new.to_string().contains("is being looked at"));
    world.look();
    world.reply().unwrap();
}

#[test]
fn r5_a_key_is_pinned_at_first_sight() {
    let mut world = World::new();
    assert_eq!(world.state(), KeyState::None);
    assert!(world.look().is_empty());
    world.offer('A', "1");
    assert_eq!(world.state(), KeyState::New { offered: fpr('A') });
    assert_eq!(world.pinned(), None);
    assert!(world.look().is_empty());
    assert_eq!(world.state(), pinned_as('A'));
    assert_eq!(world.pinned(), Some(armored('A', "1")));
    assert_eq!(world.held(), 0);
}

#[test]
fn r5_of_an_unknown_source_there_is_no_key() {
    let mut world = World::new();
    assert_eq!(world.write(|transaction| state(transaction, id(77))), KeyState::None);
}

#[test]
fn r5_another_form_of_the_pinned_key_takes_its_place() {
    let mut world = World::new();
    world.offer('A', "1");
    world.look();
    world.offer('A', "later expiry");
    assert_eq!(world.state(), KeyState::New { offered: fpr('A') });
    assert!(world.look().is_empty());
    assert_eq!(world.state(), pinned_as('A'));
    assert_eq!(world.pinned(), Some(armored('A', "later expiry")));
}

#[test]
fn r5_another_key_holds_replies_back_the_first_stays_and_its_return_lifts_that() {
    let mut world = World::new();
    world.offer('A', "1");
    world.look();
    world.offer('B', "1");
    assert_eq!(world.look(), [KeyProblem::Changed]);
    assert_eq!(world.state(), held_back(KeyProblem::Changed, Some('A'), 'B'));
    assert_eq!((world.pinned(), world.held()), (None, 1));
    let error = world.reply().unwrap_err().to_string();
    assert!(error.contains("splitdrop trust-key SOURCE --fingerprint FPR"), "{error}");
    // The same alarm is not given twice.
    world.offer('B', "2");
    assert!(world.look().is_empty());
    assert_eq!(world.state(), held_back(KeyProblem::Changed, Some('A'), 'B'));
    // Until it was looked at again nothing is lifted.
    world.offer('A', "1");
    assert_eq!(world.state(), held_back(KeyProblem::Changed, Some('A'), 'B'));
    assert!(world.look().is_empty());
    assert_eq!((world.state(), world.held()), (pinned_as('A'), 0));
    assert_eq!(world.pinned(), Some(armored('A', "1")));
}

#[test]
fn r5_a_key_that_is_not_what_the_server_claims_is_never_pinned() {
    let mut world = World::new();
    world.offer_as('B', "1", 'A');
    assert_eq!(world.look(), [KeyProblem::Mismatch]);
    assert_eq!(world.state(), held_back(KeyProblem::Mismatch, None, 'B'));
    world.offer('A', "1");
    assert!(world.look().is_empty());
    assert_eq!(world.state(), pinned_as('A'));
    // Nor does it take the place of the pinned one, whichever it claims to be.
    for (own, claimed) in [('B', 'A'), ('A', 'B')] {
        world.offer_as(own, "1", claimed);
        assert_eq!(world.look(), [KeyProblem::Mismatch]);
        assert_eq!(world.state(), held_back(KeyProblem::Mismatch, Some('A'), own));
        world.offer('A', "1");
        world.look();
        assert_eq!(world.state(), pinned_as('A'));
    }
}

#[test]
fn r5_a_key_that_cannot_be_used_holds_replies_back_until_it_can_be() {
    let mut world = World::new();
    world.offer('A', "bad");
    assert_eq!(world.look(), [KeyProblem::Unusable]);
    assert_eq!(world.state(), held_back(KeyProblem::Unusable, None, 'A'));
    world.offer('A', "1");
    assert!(world.look().is_empty());
    assert_eq!(world.state(), pinned_as('A'));
    world.offer('A', "expired and bad");
    assert_eq!(world.look(), [KeyProblem::Unusable]);
    assert_eq!(world.state(), held_back(KeyProblem::Unusable, Some('A'), 'A'));
    world.offer('A', "renewed");
    assert!(world.look().is_empty());
    assert_eq!(world.pinned(), Some(armored('A', "renewed")));
}

#[test]
fn r5_each_new_problem_is_told() {
    let mut world = World::new();
    world.offer('A', "1");
    world.look();
    world.offer('B', "1");
    assert_eq!(world.look(), [KeyProblem::Changed]);
    world.offer_as('C', "1", 'A');
    assert_eq!(world.look(), [KeyProblem::Mismatch]);
    world.offer('A', "bad");
    assert_eq!(world.look(), [KeyProblem::Unusable]);
    assert_eq!(world.state(), held_back(KeyProblem::Unusable, Some('A'), 'A'));
}

#[test]
fn r5_trusting_another_fingerprint_than_the_offered_keys_changes_nothing() {
    let mut world = World::new();
    world.offer('A', "1");
    world.look();
    world.offer('B', "1");
    world.look();
    for wrong in ['A', 'C'] {
        let error = world.trust(wrong).unwrap_err();
        assert!(matches!(&error, TrustError::Other { offered } if *offered == fpr('B')));
        assert!(error.to_string().contains(fpr('B').as_str()));
        assert_eq!(world.state(), held_back(KeyProblem::Changed, Some('A'), 'B'));
    }
}

#[test]
fn r5_trusting_the_offered_keys_fingerprint_pins_it_for_good() {
    let mut world = World::new();
    world.offer('A', "1");
    world.look();
    world.offer('B', "1");
    world.look();
    world.trust('B').unwrap();
    assert_eq!((world.state(), world.held()), (pinned_as('B'), 0));
    assert_eq!(world.pinned(), Some(armored('B', "1")));
    assert!(world.look().is_empty());
    world.reply().unwrap();
    // Now the first one is another key.
    world.offer('A', "1");
    assert_eq!(world.look(), [KeyProblem::Changed]);
    assert_eq!(world.state(), held_back(KeyProblem::Changed, Some('B'), 'A'));
}

/// The user may be quicker than the look at what came.
#[test]
fn r5_a_key_can_be_trusted_before_it_was_looked_at() {
    let mut world = World::new();
    world.offer('A', "1");
    world.trust('A').unwrap();
    assert_eq!(world.state(), pinned_as('A'));
    world.offer('B', "1");
    world.trust('B').unwrap();
    assert_eq!(world.state(), pinned_as('B'));
    assert_eq!(world.pinned(), Some(armored('B', "1")));
    assert!(world.look().is_empty());
}

/// Whoever compares has the key's own fingerprint before them, whatever the server says.
#[test]
fn r5_a_key_that_the_server_misnames_can_be_trusted_under_its_own_fingerprint() {
    let mut world = World::new();
    world.offer_as('B', "1", 'A');
    world.look();
    assert!(matches!(world.trust('A'), Err(TrustError::Other { .. })));
    world.trust('B').unwrap();
    assert_eq!(world.state(), pinned_as('B'));
    // The server names it rightly at last.
    world.offer('B', "1");
    assert!(world.look().is_empty());
    assert_eq!(world.state(), pinned_as('B'));
}

#[test]
fn r5_what_is_not_there_or_cannot_be_used_is_not_trusted() {
    let mut world = World::new();
    assert!(matches!(world.trust('A'), Err(TrustError::NoKey(_))));
    world.offer('A', "bad");
    world.look();
    let error = world.trust('A').unwrap_err();
    assert_eq!(error.to_string(), "the key cannot be used: it has expired");
    assert_eq!(world.state(), held_back(KeyProblem::Unusable, None, 'A'));
    world.list(None);
    assert!(matches!(world.trust('A'), Err(TrustError::NoSource(_))));
}

#[test]
fn r5_a_key_that_the_server_takes_away_stays_pinned_and_a_problem_stays_one() {
    let mut world = World::new();
    world.offer('A', "1");
    world.look();
    world.list(Some(None));
    assert!(world.look().is_empty());
    assert_eq!(world.state(), pinned_as('A'));
    assert_eq!(world.pinned(), Some(armored('A', "1")));
    // It does not make room for another.
    world.offer('B', "1");
    assert_eq!(world.state(), KeyState::New { offered: fpr('B') });
    assert_eq!(world.look(), [KeyProblem::Changed]);
    world.list(Some(None));
    assert!(world.look().is_empty());
    assert_eq!(world.state(), held_back(KeyProblem::Changed, Some('A'), 'B'));
    assert!(matches!(world.trust('B'), Err(TrustError::NoKey(_))));
    world.offer('A', "1");
    world.look();
    assert_eq!(world.state(), pinned_as('A'));
}

/// A snapshot came between the look at a key and the note of it.
#[test]
fn r5_what_was_found_of_a_key_says_nothing_of_the_one_that_is_offered_now() {
    let mut world = World::new();
    world.offer('A', "1");
    let looked_at = world.write(|transaction| to_look_at(transaction, 10)).remove(0);
    assert_eq!((looked_at.source, &looked_at.claimed, &looked_at.pinned), (source(), &fpr('A'), &None));
    world.offer('B', "1");
    world.write(|transaction| note(transaction, &looked_at, &Finding::Good));
    assert_eq!(world.state(), KeyState::New { offered: fpr('B') });
    assert_eq!(world.look(), [KeyProblem::Changed]);
    assert_eq!(world.state(), held_back(KeyProblem::Changed, Some('A'), 'B'));
}

#[test]
fn keys_are_looked_at_so_many_at_a_time() {
    let mut world = World::new();
    world.offer('A', "1");
    assert!(world.write(|transaction| to_look_at(transaction, 0)).is_empty());
    assert_eq!(world.write(|transaction| to_look_at(transaction, 1)).len(), 1);
}

#[test]
fn r5_a_key_goes_with_its_source_and_no_other_passes_for_it_when_it_is_back() {
    let mut world = World::new();
    world.offer('A', "1");
    world.look();
    world.offer('B', "1");
    world.look();
    world.list(None);
    let left = "SELECT count(*) FROM local_key WHERE armored <> '' OR offered_armored <> ''";
    let left: u32 = world.write(|transaction| Ok(transaction.query_row(left, [], |row| row.get(0))?));
    assert_eq!((left, world.held()), (0, 0));
    world.offer('B', "1");
    assert_eq!(world.look(), [KeyProblem::Changed]);
    world.offer('A', "2");
    world.look();
    assert!(world.pinned().is_some());
}

/// A key whose time had not come by a wrong clock is looked at again.
#[test]
fn r5_what_could_not_be_used_is_looked_at_again_after_a_start_or_login() {
    let mut world = World::new();
    world.offer('A', "bad");
    assert_eq!(world.look(), [KeyProblem::Unusable]);
    assert!(world.write(|transaction| to_look_at(transaction, 10)).is_empty());
    world.write(look_again);
    assert_eq!(world.write(|transaction| to_look_at(transaction, 10)).len(), 1);
    assert!(world.look().is_empty(), "no second alarm");
}

/// Case R5: a deletion that the server confirmed and did not make, and that is given up, is no way to another key.
#[test]
fn r5_a_source_that_is_restored_has_the_key_that_it_had() {
    for (offered, problems) in [('A', vec![]), ('B', vec![KeyProblem::Changed])] {
        let mut world = World::new();
        world.offer('A', "1");
        world.look();
        world.write(|transaction| {
            let (act, now) = (Act::DeleteSources { sources: vec![source()] }, Timestamp::try_new(9).unwrap());
            let act = outbox::enqueue(transaction, anna(), &act, now).unwrap().taken.act.unwrap();
            let none = (Default::default(), Default::default());
            let batch = outbox::ready(transaction, anna(), now, &none.0, &none.1)?.batches.remove(0);
            let row = outbox::begin_attempt(transaction, &batch.rows, 1)?.remove(0);
            let waits = outbox::Waits::default();
            outbox::settle(transaction, &row, &outbox::Outcome::Done, now, 1, &waits, 0.0)?;
            transaction.execute("UPDATE outbox SET not_deleted = 1", [])?;
            outbox::deal(transaction, anna(), control::Deal::Restore, &[act]).unwrap();
            Ok(())
        });
        world.offer(offered, "1");
        assert_eq!(world.look(), problems);
        assert_eq!(world.pinned().is_some(), offered == 'A');
    }
}

/// Case R5: one alarm for each key.
#[test]
fn r5_a_third_key_is_an_alarm_of_its_own() {
    let mut world = World::new();
    world.offer('A', "1");
    world.look();
    for (key, form, alarms) in [('B', "1", 1), ('B', "2", 0), ('C', "1", 1)] {
        world.offer(key, form);
        assert_eq!(world.look().len(), alarms, "{key}{form}");
    }
}

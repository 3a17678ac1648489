//! No variant is without a vector: one that is new does not compile here until it has a name, and fails until that is there.

use std::collections::BTreeSet;

use protocol::answer::Part;
use protocol::codec::decode_exact;
use protocol::*;
use serde::de::DeserializeOwned;

use super::{calls, hellos, parts, welcomes};

/// For each variant of an enum the names of its vectors: `$names` of one value, `$all` of all of them.
macro_rules! vectors {
    ($names:ident, $all:ident, $of:ty: $($pattern:pat => [$($name:literal),+ $(,)?],)+) => {
        /// The vectors of the value's variant, by name or by what is before the `/` in it.
        pub(super) fn $names(value: &$of) -> &'static [&'static str] {
            match value {
                $($pattern => &[$($name),+],)+
            }
        }

        /// The same for every variant.
        pub(super) const $all: &[&[&str]] = &[$(&[$($name),+]),+];
    };
}

vectors! { of_call, ALL_CALLS, Call:
    Call::Health => ["health"],
    Call::Login { .. } => ["login"],
    Call::Logout { .. } => ["logout"],
    Call::GetUsers { .. } => ["get_users"],
    Call::GetSources { .. } => ["get_sources"],
    Call::GetSubmissions { .. } => ["get_submissions", "get_submissions_of_one"],
    Call::GetAllReplies { .. } => ["get_all_replies"],
    Call::Star { .. } => ["star"],
    Call::Unstar { .. } => ["unstar"],
    Call::MarkSeen { .. } => ["mark_seen"],
    Call::DeleteSource { .. } => ["delete_source"],
    Call::DeleteConversation { .. } => ["delete_conversation"],
    Call::DeleteSubmission { .. } => ["delete_submission"],
    Call::DeleteReply { .. } => ["delete_reply"],
    Call::DownloadSubmission { .. } => ["download_submission"],
    Call::DownloadReply { .. } => ["download_reply"],
    Call::SendReply { .. } => ["send_reply"],
    Call::Probe => ["probe"],
}

vectors! { of_part, ALL_PARTS, Part:
    Part::Begin => ["begin"],
    Part::Items(Items::Health(_)) => ["health"],
    Part::Items(Items::SignedIn(_)) => ["signed_in"],
    Part::Items(Items::Users(_)) => ["users"],
    Part::Items(Items::Sources(_)) => ["sources", "unreadable"],
    Part::Items(Items::Submissions(_)) => ["submissions", "submission_that_is_a_message"],
    Part::Items(Items::Replies(_)) => ["replies"],
    Part::Items(Items::Deletions(_)) => ["deletions"],
    Part::Items(Items::Download(_)) => ["download", "download_of_unknown_length"],
    Part::Items(Items::Chunk(_)) => ["chunk"],
    Part::Items(Items::Sum(_)) => ["sum"],
    Part::Items(Items::Stored(_)) => ["stored", "stored_under_no_readable_name"],
    Part::Items(Items::Probe(_)) => ["probe", "probe_without_a_date"],
    Part::End { .. } => ["end"],
    Part::Failed(_) => ["failed"],
}

vectors! { of_welcome, ALL_WELCOMES, Welcome:
    Welcome::Ready { .. } => ["ready"],
    Welcome::Refused(Refusal::Scope { .. }) => ["scope"],
    Welcome::Refused(Refusal::SettingMissing(_)) => ["missing"],
    Welcome::Refused(Refusal::SettingInvalid(_)) => ["invalid"],
    Welcome::Refused(Refusal::Caller(_)) => ["caller"],
    Welcome::Refused(Refusal::Landlock(_)) => ["landlock"],
    Welcome::Refused(Refusal::Unconfined) => ["unconfined"],
}

/// The names that the values have, each of which must be one of its variant's, are all that there are to be.
fn complete<T>(values: &[(String, T)], names: fn(&T) -> &'static [&'static str], all: &[&[&'static str]]) {
    let mut there = BTreeSet::new();
    for (name, value) in values {
        let group = name.split_once('/').map_or(name.as_str(), |(group, _)| group);
        let own = names(value).iter().find(|own| **own == group);
        assert!(own.is_some(), "{name} is the name of another variant's vector");
        there.extend(own.copied());
    }
    assert_eq!(there, all.concat().into_iter().collect());
}

#[test]
fn every_call_part_and_welcome_has_its_vectors() {
    let named = |(name, value)| (String::from(name), value);
    complete(&calls().into_iter().map(named).collect::<Vec<_>>(), of_call, ALL_CALLS);
    complete(&parts(), of_part, ALL_PARTS);
    let named = |(name, value)| (String::from(name), value);
    complete(&welcomes().into_iter().map(named).collect::<Vec<_>>(), of_welcome, ALL_WELCOMES);
}

/// All values of an enum without fields, as the wire has them.
fn all_on_the_wire<T: DeserializeOwned>() -> Vec<T> {
    (0..=250_u8).map_while(|number| decode_exact(&[number]).ok()).collect()
}

#[test]
fn every_value_of_the_small_enums_is_in_a_vector() {
    assert_eq!(all_on_the_wire::<Field>(), Field::ALL);
    assert_eq!(all_on_the_wire::<ErrorKind>(), ErrorKind::ALL);
    assert_eq!(all_on_the_wire::<Scope>(), Scope::ALL);
    // What the vectors hold, in the words of `Debug`, in which a value ends before one of these.
    let held = format!("{:?} {:?} {:?}", parts(), hellos(), welcomes());
    let holds = |field: &str, value: &dyn std::fmt::Debug| {
        let words = format!("{field}: {value:?}");
        assert!([", ", " }", ")"].iter().any(|end| held.contains(&format!("{words}{end}"))), "no vector has {words}");
    };
    Field::ALL.iter().for_each(|value| holds("field", value));
    ErrorKind::ALL.iter().for_each(|value| holds("kind", value));
    Scope::ALL.iter().for_each(|value| holds("scope", value));
    all_on_the_wire::<Stage>().iter().for_each(|value| holds("stage", value));
    all_on_the_wire::<SubmissionKind>().iter().for_each(|value| holds("kind", value));
    all_on_the_wire::<Seccomp>().iter().for_each(|value| holds("seccomp", value));
    all_on_the_wire::<Landlock>().iter().for_each(|value| holds("landlock", value));
    all_on_the_wire::<ApiLevel>().iter().for_each(|value| holds("api_level", &Some(value)));
}

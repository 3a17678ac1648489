//! What the machine does besides for replies: keys, drafts, and the note of those that may have been stored.

use control::ReplyText;

use super::super::super::{self as outbox, Row};
use super::super::world::{Lists, Src, Who};
use super::Machine;
use crate::store::keys::{self, Finding};
use crate::store::{StoreError, drafts};

impl Machine<'_> {
    /// Keeps or forgets the draft of whoever is signed in.
    pub(in super::super) fn draft(&mut self, source: Src, text: Option<&str>) -> bool {
        let Some(who) = self.signed_in else { return false };
        let (now, reply) = (self.time(), text.map(|text| ReplyText::try_new(text).unwrap()));
        let kept =
            self.write(|transaction| drafts::keep(transaction, who.id(), source.id(), reply.as_ref(), now)).unwrap();
        assert_eq!(kept, self.reference.draft(who, source, text));
        kept
    }

    /// The draft to a source, as `viewer` would be shown it.
    pub(in super::super) fn draft_of(&mut self, viewer: Who, source: Src) -> Option<String> {
        let draft = self.as_seen_by(viewer, |transaction| drafts::load(transaction, source.id()));
        draft.map(|text| text.as_str().to_owned())
    }

    /// The keys that came with a snapshot are looked at, and are good.
    fn look_at_keys(&mut self) {
        self.write(|transaction| {
            for offered in keys::to_look_at(transaction, 64)? {
                assert_eq!(keys::note(transaction, &offered, &Finding::Good)?, None);
            }
            Ok::<_, StoreError>(())
        })
        .unwrap();
    }

    /// A row is being sent. A reply is that only when no attempt before it can have stored it, as far as can be told.
    pub(super) fn note_begun(&mut self, row: &Row) {
        let Some(reply) = self.rows[&row.id].1.reply() else { return };
        assert!(!self.in_doubt.contains_key(&row.id), "{reply:?} is sent again, and may have been stored");
        self.in_doubt.insert(row.id, None);
        self.unsure.remove(&row.id);
        assert_eq!(self.read(|transaction| outbox::text(transaction, row)), Some(reply.text()), "what is sent");
    }

    pub(super) fn note_ended(&mut self, row: &Row, in_doubt: bool) {
        match self.in_doubt.get_mut(&row.id) {
            Some(since) if in_doubt => *since = Some(self.snapshot),
            _ => drop(self.in_doubt.remove(&row.id)),
        }
    }

    /// Nothing is being sent any more.
    pub(super) fn landed(&mut self) {
        let snapshot = self.snapshot;
        self.in_doubt.values_mut().filter(|since| since.is_none()).for_each(|since| *since = Some(snapshot));
    }

    /// A snapshot was applied that lists these items: it settles what was in doubt before it was asked for. Where it may hold
    /// something else besides, three of them do.
    pub(super) fn note_applied(&mut self, number: u64, lists: &Lists) {
        let (rows, unsure) = (&self.rows, &mut self.unsure);
        self.in_doubt.retain(|row, since| {
            let listed = rows[row].1.reply().is_some_and(|reply| lists.items.contains_key(&reply));
            if listed || since.is_none_or(|since| since >= number) {
                return true;
            }
            let missing = unsure.entry(*row).or_default();
            *missing += 1;
            !lists.whole_replies && *missing < 3
        });
        let stored = self.server.answers().into_iter().map(|(_, reply)| reply);
        self.unnamed.extend(stored.filter(|reply| lists.hides && !lists.items.contains_key(reply)));
        self.look_at_keys();
    }

    /// The user wants an act tried again: a reply too that some list could not decide upon.
    pub(super) fn note_retried(&mut self, act: u64) {
        let of_act = |row: &i64| self.reference.entry(*row).is_some_and(|entry| entry.act == act);
        let missing: Vec<_> = self.unsure.keys().copied().filter(of_act).collect();
        for row in missing {
            self.in_doubt.remove(&row);
            self.unsure.remove(&row);
        }
    }
}

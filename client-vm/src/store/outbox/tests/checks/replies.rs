//! Where the text of each reply is, and what is told of replies and drafts.

use std::collections::BTreeMap;

use control::ActState;
use protocol::value::ReplyId;
use rusqlite::Transaction;

use super::super::super as outbox;
use super::super::machine::Machine;
use super::super::reference::{End, Status, View};
use super::super::world::{Itm, Src, Who};
use super::name;
use crate::store::{StoreError, drafts};

/// What is stored of replies and drafts.
struct Stored {
    /// Of each row: its reply, the text, and whether it is being sent.
    rows: BTreeMap<i64, (Itm, String, bool)>,
    /// Of each reply that was listed: the text and its length.
    kept: BTreeMap<Itm, (String, usize)>,
    drafts: BTreeMap<(Who, Src), String>,
}

impl Machine<'_> {
    /// Everything is as the reference has it; and no reply that was taken is lost: its text is in the outbox, or beside what
    /// the server lists, until somebody gives it up or deletes it.
    pub(in super::super) fn check_replies(&mut self) {
        let stored = self.read(look_at_texts);
        let must = self.reference.replies();
        let must: BTreeMap<_, _> =
            must.map(|(entry, reply)| (entry.row, (reply, text(reply), entry.in_flight))).collect();
        assert_eq!(stored.rows, must, "the replies of the outbox");
        let must = self.reference.kept.iter().map(|reply| (*reply, (text(*reply), text(*reply).len()))).collect();
        assert_eq!(stored.kept, must, "what replies say that were listed");
        assert_eq!(stored.drafts, self.reference.drafts, "the drafts");
        let listed = self.reference.held().1;
        for (row, (_, what)) in &self.rows {
            let Some(reply) = what.reply() else { continue };
            let waits = stored.rows.get(row).is_some_and(|(of, held, _)| (*of, held.as_str()) == (reply, &text(reply)));
            let is_listed =
                listed.contains(&reply) && stored.kept.get(&reply).is_some_and(|(held, _)| *held == text(reply));
            assert!(!(waits && is_listed), "{reply:?} is shown twice");
            let given_up = self.reference.ended.get(row) == Some(&End::GivenUp);
            let deleted = self.is_performed(*row) && !self.server.has(reply);
            let source_gone = !self.server.is_there(*what);
            // The server has it, and will be seen to.
            let unnamed = self.is_performed(*row) && self.unnamed.contains(&reply);
            assert!(waits || is_listed || given_up || deleted || source_gone || unnamed, "{reply:?} is lost");
        }
    }

    /// What `viewer` is told of replies that are not listed, and of drafts.
    pub(super) fn check_replies_closely(&mut self, viewer: Who, shown: &View) {
        let (now, lane) = (self.time(), self.lane());
        for source in shown.sources.keys() {
            let (told, draft) = self.as_seen_by(viewer, |transaction| {
                let told = outbox::outgoing(transaction, source.id(), now, &lane)?;
                Ok((told, drafts::load(transaction, source.id())?))
            });
            let draft = draft.map(|text| text.as_str().to_owned());
            assert_eq!(draft.as_ref(), self.reference.drafts.get(&(viewer, *source)), "{viewer:?}'s draft");
            let told: Vec<_> = told
                .into_iter()
                .map(|reply| {
                    assert_eq!(reply.source, source.id());
                    let state = reply.state.as_ref().map(name);
                    let who = Who::of(reply.journalist);
                    (reply.reply, reply.act.0, who, reply.own, state, reply.text.as_str().to_owned())
                })
                .collect();
            let to_source = self.reference.replies().filter(|(entry, _)| entry.what.source() == *source);
            let must: Vec<_> = to_source
                .map(|(entry, reply)| {
                    let own = entry.who == viewer;
                    let runs = own && lane.running.contains(&(control::ActId(entry.act), source.id()));
                    let state = match entry.status {
                        Status::Confirmed { .. } | Status::Aside { .. } => None,
                        Status::Refused { .. } => Some(ActState::Refused),
                        Status::Open { .. } if runs => Some(ActState::Running),
                        Status::Open { sent: true } => Some(ActState::Unconfirmed),
                        Status::Open { sent: false } => Some(ActState::Waiting),
                    };
                    (reply.reply_id(), entry.act, entry.who, own, state.as_ref().map(name), text(reply))
                })
                .collect();
            assert_eq!(told, must, "what {viewer:?} is told of replies to {source:?}");
        }
    }
}

fn text(reply: Itm) -> String {
    reply.text().as_str().to_owned()
}

fn look_at_texts(transaction: &Transaction<'_>) -> Result<Stored, StoreError> {
    let mut stored = Stored { rows: BTreeMap::new(), kept: BTreeMap::new(), drafts: BTreeMap::new() };
    let item = |id: String| Ok::<_, StoreError>(Itm::of(protocol::value::ItemId::Reply(id.parse::<ReplyId>()?)));
    let mut select =
        transaction.prepare_cached("SELECT id, item_id, text, in_flight FROM outbox WHERE kind = 'reply'")?;
    let mut rows = select.query([])?;
    while let Some(row) = rows.next()? {
        stored.rows.insert(row.get(0)?, (item(row.get(1)?)?, row.get(2)?, row.get(3)?));
    }
    let mut select = transaction
        .prepare_cached("SELECT item_id, text, plain_bytes FROM local_item WHERE is_reply AND state = 'decrypted'")?;
    let mut rows = select.query([])?;
    while let Some(row) = rows.next()? {
        stored.kept.insert(item(row.get(0)?)?, (row.get(1)?, row.get(2)?));
    }
    let mut select = transaction.prepare_cached("SELECT journalist_id, source_id, text FROM local_draft")?;
    let mut rows = select.query([])?;
    while let Some(row) = rows.next()? {
        let (who, source) = (Who::of(row.get::<_, String>(0)?.parse()?), Src::of(row.get::<_, String>(1)?.parse()?));
        stored.drafts.insert((who, source), row.get(2)?);
    }
    Ok(stored)
}

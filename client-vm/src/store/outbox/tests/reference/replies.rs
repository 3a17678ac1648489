//! What must become of replies: where the text of each is, and when one may be sent again.

use super::super::world::{Itm, Src, Who};
use super::{Entry, Reference};

impl Reference {
    /// Whether a reply of this id was taken and is not done with, or is listed.
    pub(super) fn knows(&self, reply: Itm) -> bool {
        self.entries.iter().any(|entry| entry.what.reply() == Some(reply)) || self.items.contains_key(&reply)
    }

    /// Nothing is being sent any more.
    pub(in super::super) fn land(&mut self, snapshot: u64) {
        for entry in self.entries.iter_mut().filter(|entry| entry.in_flight) {
            entry.in_flight = false;
            entry.snapshot = entry.snapshot.max(snapshot);
        }
    }

    /// Keeps or forgets a draft; gives whether there is a source to write to.
    pub(in super::super) fn draft(&mut self, who: Who, source: Src, text: Option<&str>) -> bool {
        let shown = self.view(who).sources.get(&source).is_some_and(|shown| !shown.being_deleted);
        if shown {
            match text {
                Some(text) => drop(self.drafts.insert((who, source), text.to_owned())),
                None => {
                    self.drafts.remove(&(who, source));
                    self.forget_answered_in_vain();
                }
            }
        }
        shown
    }

    /// What replies say that were taken back is a draft, behind what there is.
    pub(super) fn make_drafts(&mut self, taken_back: &[Entry]) {
        for entry in taken_back {
            if let Some(reply) = entry.what.reply() {
                let text = reply.text().as_str().to_owned();
                self.drafts
                    .entry((entry.who, entry.what.source()))
                    .and_modify(|draft| *draft = format!("{draft}\n\n{text}"))
                    .or_insert(text);
            }
        }
    }

    /// Whether a row is no reply, or the first that is open of its journalist to its source.
    pub(in super::super) fn is_first(&self, row: i64) -> bool {
        let Some((own, _)) = self.replies().find(|(entry, _)| entry.row == row) else { return true };
        !self.replies().any(|(other, _)| {
            other.row < row && other.who == own.who && other.what.source() == own.what.source() && other.is_open()
        })
    }

    /// The replies of the outbox, in its order.
    pub(in super::super) fn replies(&self) -> impl Iterator<Item = (&Entry, Itm)> {
        self.entries.iter().filter_map(|entry| Some((entry, entry.what.reply()?)))
    }
}

//! Short words for the tests that tell one story each.

use std::time::Duration;

use control::{ActState, QueueEntry};
use rusqlite::Connection;

use super::super::{self as outbox, Ready};
use super::machine::{Ending, Machine, Opening};
use super::reference::{ItemView, SourceView};
use super::server::{By, Server};
use super::world::{Itm, Src, What, Who, Wish};
use crate::store::view;

/// Anna has signed in, and holds what the server lists: sources with so many items, nothing starred or seen.
pub(super) fn with_sources<'a>(store: &'a mut Connection, items: &[usize]) -> Machine<'a> {
    let mut server = Server::default();
    for items in items {
        let source = server.add_source(false);
        for _ in 0..*items {
            server.add_item(source);
        }
    }
    let mut machine = Machine::new(store, server, false);
    machine.login(Who::Anna);
    machine.sync();
    machine
}

impl Machine<'_> {
    pub(super) fn source(&mut self, viewer: Who, source: Src) -> Option<SourceView> {
        self.shown_to(viewer).sources.get(&source).copied()
    }

    pub(super) fn starred(&mut self, viewer: Who, source: Src) -> bool {
        self.source(viewer, source).unwrap().starred
    }

    pub(super) fn being_deleted(&mut self, viewer: Who, source: Src) -> bool {
        self.source(viewer, source).unwrap().being_deleted
    }

    pub(super) fn item(&mut self, viewer: Who, item: Itm) -> Option<ItemView> {
        self.shown_to(viewer).items.get(&item).copied()
    }

    pub(super) fn delete(&mut self, source: Src) {
        self.act(&Wish::DeleteSources(vec![source]));
    }

    /// Begins an attempt of what is due first.
    pub(super) fn attempt(&mut self) {
        self.choose(0, Opening::Allowed);
        let last = self.running.len() - 1;
        self.begin(last);
    }

    /// The server performs the last attempt's rows.
    pub(super) fn perform_last(&mut self) {
        self.perform(self.running.len() - 1, u8::MAX, 0);
    }

    pub(super) fn end_last(&mut self, ending: Ending) {
        self.end(self.running.len() - 1, ending);
    }

    /// Sends what is due first, and the answer comes. What it deletes stays listed `linger` times more.
    pub(super) fn send(&mut self, linger: u8) {
        self.attempt();
        self.perform(self.running.len() - 1, u8::MAX, linger);
        self.end_last(Ending::Answered);
    }

    /// Sends what is due first, the server does not perform it, and it ends so.
    pub(super) fn send_in_vain(&mut self, ending: Ending) {
        self.attempt();
        self.end_last(ending);
    }

    pub(super) fn colleague(&mut self, what: What) {
        self.server.perform(what, By::Colleague(Who::Ben), 0);
    }

    pub(super) fn pass(&mut self, time: Duration) {
        self.now += u64::try_from(time.as_micros()).unwrap();
    }

    /// How many batches can be sent, and how long until there is more.
    pub(super) fn due(&mut self) -> (usize, Option<Duration>) {
        let Ready { batches, next, .. } = self.ready_now();
        (batches.len(), next)
    }

    pub(super) fn queue(&mut self) -> Vec<QueueEntry> {
        let (now, lane) = (self.time(), self.lane());
        self.read(|transaction| outbox::queue(transaction, now, &lane))
    }

    /// The acts in the queue, and how far they have come.
    pub(super) fn states(&mut self) -> Vec<(u64, ActState)> {
        self.queue().into_iter().map(|entry| (entry.act.0, entry.state)).collect()
    }

    /// Sources, items, and unread items, as they are counted for whoever signed in last.
    pub(super) fn totals(&mut self) -> (u64, u64, u64) {
        let totals = self.read(view::totals);
        (totals.sources, totals.items, totals.unread)
    }

    /// The words for the error that an act meets, which changes nothing.
    pub(super) fn act_error(&mut self, wish: &Wish) -> String {
        let (who, act, now) = (self.signed_in.unwrap(), wish.act(), self.time());
        let before = self.rows();
        let taken = self.write(|transaction| outbox::enqueue(transaction, who.id(), &act, now));
        assert_eq!(self.rows(), before);
        taken.unwrap_err().to_string()
    }

    /// The same for a deal.
    pub(super) fn deal_error(&mut self, deal: control::Deal, acts: &[u64]) -> String {
        let who = self.signed_in.unwrap();
        let acts: Vec<_> = acts.iter().copied().map(control::ActId).collect();
        let before = self.rows();
        let dealt = self.write(|transaction| outbox::deal(transaction, who.id(), deal, &acts));
        assert_eq!(self.rows(), before);
        dealt.unwrap_err().to_string()
    }

    /// The outbox: rows and states.
    pub(super) fn rows(&mut self) -> Vec<(i64, String)> {
        self.read(|transaction| {
            let mut select = transaction.prepare_cached("SELECT id, state FROM outbox ORDER BY id")?;
            Ok(select.query_map([], |sql| Ok((sql.get(0)?, sql.get(1)?)))?.collect::<Result<_, _>>()?)
        })
    }
}

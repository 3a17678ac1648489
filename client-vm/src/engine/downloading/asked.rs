//! What is asked of the lanes that download.

use std::collections::HashMap;
use std::sync::atomic::Ordering;

use control::{DownloadEntry, DownloadLane, DownloadState, Wanted};
use protocol::value::ItemId;

use crate::engine::handle::Answer;
use crate::engine::{Ended, Engine};
use crate::failure;
use crate::store::downloads;

impl Engine {
    /// The user asks for files, or again for what has failed.
    pub(in crate::engine) async fn want(&mut self, items: Vec<ItemId>, answer: Answer<Wanted>) {
        let now = self.clock.now();
        let wanted = self.store.write(move |transaction| {
            let items = if items.is_empty() { downloads::absent(transaction)? } else { items };
            downloads::want(transaction, &items, now)
        });
        let wanted = wanted.await;
        self.let_downloads_ask();
        self.downloading.look_again();
        answer.give(wanted.map_err(|error| failure::of_store(&error)));
        self.reading.forget_failures();
        self.reading.look_again();
        self.start_downloads().await;
        self.start_reading().await;
    }

    /// The user does not want files after all.
    pub(in crate::engine) async fn unwant(&mut self, items: Vec<ItemId>, answer: Answer<Wanted>) {
        let running: Vec<_> = self
            .downloading
            .running
            .values()
            .filter(|fetching| fetching.lane == DownloadLane::Files)
            .map(|fetching| fetching.candidate.item.id())
            .collect();
        let unwanted = self.store.write(move |transaction| {
            let items = if items.is_empty() { downloads::wanted_files(transaction)? } else { items };
            let taken_back = downloads::unwant(transaction, &items)?;
            let already = u64::try_from(items.len().saturating_sub(taken_back.len())).unwrap_or(u64::MAX);
            Ok((taken_back, already))
        });
        match unwanted.await {
            Ok((taken_back, already)) => {
                for fetching in self.downloading.running.values() {
                    let id = fetching.candidate.item.id();
                    if taken_back.contains(&id) && running.contains(&id) {
                        fetching.cancel.cancel();
                    }
                }
                self.downloading.look_again();
                let asked = u64::try_from(taken_back.len()).unwrap_or(u64::MAX);
                answer.give(Ok(Wanted { asked, already }));
            }
            Err(error) => answer.give(Err(failure::of_store(&error))),
        }
        self.start_downloads().await;
    }

    pub(in crate::engine) fn downloads(&mut self, answer: Answer<Vec<DownloadEntry>>) {
        let (store, now) = (self.store.clone(), self.clock.now());
        let received: HashMap<_, _> = self
            .downloading
            .running
            .values()
            .map(|fetching| (fetching.candidate.item.id(), fetching.received.load(Ordering::Relaxed)))
            .collect();
        self.tasks.spawn(async move {
            let read = store.read(move |transaction| {
                let mut entries = downloads::entries(transaction, DownloadLane::Messages, now)?;
                entries.extend(downloads::entries(transaction, DownloadLane::Files, now)?);
                for entry in &mut entries {
                    if let Some(received) = received.get(&entry.item) {
                        entry.state = DownloadState::Running { received: *received };
                    }
                }
                Ok(entries)
            });
            answer.give(read.await.map_err(|error| failure::of_store(&error)));
            Ended::Done
        });
    }
}

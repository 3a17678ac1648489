//! Documents that are open in disposable VMs, and the call of a device VM.
//!
//! They last as long as a person likes, so they are counted apart from the calls that the sync, downloads and acts need, and
//! hold none of these up.
//!
//! **Invariant:** at most [`MAX_CALLS`] of them go on, one of each item, and one of a device VM.
//!
//! **Invariant:** what was put there for a call is gone when its end is told, or `status` says that it is not.

use std::collections::HashMap;

use control::{DeviceStatus, DeviceTask, Event, Failure, FailureKind, ViewerStep};
use protocol::value::ItemId;
use qubes_rpc::name::TargetName;
use tokio::task::Id;
use tokio_util::sync::CancellationToken;

use super::handle::Answer;
use super::{Ended, Engine};
use crate::failure::{self, failure};
use crate::handover::{HandoverDesk, HandoverError, Opener, Running, Shown, read_status};
use crate::settings::HandoverSettings;

/// How many documents may be open, a device VM's call included: qrexec breaks at some more calls than these and the eight
/// others.
pub(super) const MAX_CALLS: usize = 8;

/// What is handed over at present.
#[derive(Debug)]
pub(super) struct HandingOver {
    desk: HandoverDesk,
    opener: Opener,
    viewer_vm: TargetName,
    device_vm: TargetName,
    printer_vm: TargetName,
    viewers: HashMap<Id, ItemId>,
    device: Option<Id>,
}

impl HandingOver {
    pub(super) fn new(desk: HandoverDesk, settings: HandoverSettings) -> Self {
        let HandoverSettings { open_in_vm, viewer_vm, device_vm, printer_vm } = settings;
        let opener = Opener { program: open_in_vm };
        Self { desk, opener, viewer_vm, device_vm, printer_vm, viewers: HashMap::new(), device: None }
    }

    /// The items that are open, in the order of their ids.
    pub(super) fn viewers(&self) -> Vec<ItemId> {
        let mut items: Vec<_> = self.viewers.values().copied().collect();
        items.sort_unstable();
        items
    }

    fn refuse_if_full(&self) -> Result<(), Failure> {
        let calls = self.viewers.len().saturating_add(usize::from(self.device.is_some()));
        if calls < MAX_CALLS {
            return Ok(());
        }
        let text = format!("{MAX_CALLS} documents are open in other VMs, and no more may be: close one of them first");
        Err(failure(FailureKind::Conflict, text))
    }

    fn refuse_if_open(&self, item: ItemId) -> Result<(), Failure> {
        if self.viewers.values().any(|open| *open == item) {
            let text = format!("the item {item} is open already: close it there before you open it again");
            return Err(failure(FailureKind::Conflict, text));
        }
        Ok(())
    }

    /// Whether no device VM has anything to do.
    pub(super) fn has_no_device_call(&self) -> bool {
        self.device.is_none()
    }

    fn refuse_if_busy(&self) -> Result<(), Failure> {
        if self.device.is_some() {
            return Err(failure(
                FailureKind::Conflict,
                "something is being copied or printed already: wait for its end",
            ));
        }
        Ok(())
    }

    /// Whom a task goes to.
    fn vm(&self, task: &DeviceTask) -> &TargetName {
        match task {
            DeviceTask::CheckDrive | DeviceTask::Copy { .. } => &self.device_vm,
            DeviceTask::CheckPrinter | DeviceTask::Print { .. } => &self.printer_vm,
        }
    }
}

/// Hands an item to a disposable VM.
async fn hand_over(
    desk: &HandoverDesk,
    opener: &Opener,
    vm: &TargetName,
    item: ItemId,
) -> Result<(Shown, Running), HandoverError> {
    let shown = desk.show(item).await?;
    match opener.open(vm, &shown.path) {
        Ok(running) => Ok((shown, running)),
        Err(error) => {
            desk.hide(shown.number).await?;
            Err(error)
        }
    }
}

/// Has a device VM do its task, and says what came of it, and whether the archive is gone, or what there was of it: what was
/// done there was done, whether it is or not.
async fn have_done(
    desk: &HandoverDesk,
    opener: &Opener,
    vm: &TargetName,
    task: DeviceTask,
    stop: &CancellationToken,
) -> (Result<DeviceStatus, HandoverError>, bool) {
    let doing = async {
        let archive = desk.archive(task, stop).await?;
        let ended = opener.open(vm, &archive)?.ended(stop).await?;
        read_status(&ended, vm)
    };
    let done = doing.await;
    let removed = desk.remove_archive().await;
    if let Err(error) = &removed {
        tracing::error!(error = failure::chain(error), "could not remove what a device VM was given");
    }
    (done, removed.is_ok())
}

impl Engine {
    /// Opens an item in a disposable VM. The answer says that it was handed over, or not.
    pub(super) fn open(&mut self, item: ItemId, answer: Answer<()>) {
        let refused = self.handing_over.refuse_if_open(item).and_then(|()| self.handing_over.refuse_if_full());
        if let Err(told) = refused {
            answer.give(Err(told));
            return;
        }
        let (desk, opener) = (self.handing_over.desk.clone(), self.handing_over.opener.clone());
        let (vm, events, stop) = (self.handing_over.viewer_vm.clone(), self.events.clone(), self.quit.clone());
        let task = self.tasks.spawn(async move {
            let (shown, running) = match hand_over(&desk, &opener, &vm, item).await {
                Ok(handed) => handed,
                Err(error) => {
                    tracing::warn!(%item, "an item could not be opened");
                    answer.give(Err(failure::of_handover(&error)));
                    return Ended::Viewer(None);
                }
            };
            drop(events.send(Event::Viewer { item, step: ViewerStep::Opened }));
            answer.give(Ok(()));
            let mut closed = running.closed(&stop).await;
            if let Err(error) = desk.hide(shown.number).await {
                tracing::error!(error = failure::chain(&error), "could not remove what was shown");
                closed = closed.and(Err(error));
            }
            Ended::Viewer(Some(closed.map_err(|error| failure::of_handover(&error))))
        });
        self.handing_over.viewers.insert(task.id(), item);
    }

    /// A document was closed, or broke off; none where it was never open.
    pub(super) fn viewer_ended(&mut self, task: Id, ended: Option<Result<(), Failure>>) {
        let Some(item) = self.handing_over.viewers.remove(&task) else { return };
        let step = match ended {
            None => return,
            Some(Ok(())) => ViewerStep::Closed,
            Some(Err(told)) => {
                tracing::warn!(%item, kind = ?told.kind, "an open document broke off");
                ViewerStep::Failed(told)
            }
        };
        self.emit(Event::Viewer { item, step });
    }

    /// The items that are open.
    pub(super) fn viewers(&self, answer: Answer<Vec<ItemId>>) {
        answer.give(Ok(self.handing_over.viewers()));
    }

    /// Has a device VM do something. It ends when nobody waits for the answer any more.
    pub(super) fn have_device_do(&mut self, task: DeviceTask, mut answer: Answer<DeviceStatus>) {
        let refused = self.handing_over.refuse_if_busy().and_then(|()| self.handing_over.refuse_if_full());
        let refused = refused.and_then(|()| self.erasing.refuse_if_it_removes_an_archive());
        if let Err(told) = refused {
            answer.give(Err(told));
            return;
        }
        let (desk, opener) = (self.handing_over.desk.clone(), self.handing_over.opener.clone());
        let (vm, stop) = (self.handing_over.vm(&task).clone(), self.quit.child_token());
        let spawned = self.tasks.spawn(async move {
            let (done, gone) = {
                let working = have_done(&desk, &opener, &vm, task, &stop);
                tokio::pin!(working);
                tokio::select! {
                    done = &mut working => done,
                    () = answer.closed() => {
                        stop.cancel();
                        working.await
                    }
                }
            };
            match &done {
                Ok(status) => tracing::info!(status = status.word(), "a device VM's call ended"),
                Err(_) => tracing::warn!("a device VM's call failed"),
            }
            Ended::Device(answer, done.map_err(|error| failure::of_handover(&error)), gone)
        });
        self.handing_over.device = Some(spawned.id());
    }

    /// A device VM's call has ended. Whoever hears of it may make the next one. `gone` says whether what the VM was given is
    /// not here any more; where it is, its removal is tried again.
    pub(super) fn device_ended(
        &mut self,
        answer: Answer<DeviceStatus>,
        done: Result<DeviceStatus, Failure>,
        gone: bool,
    ) {
        self.handing_over.device = None;
        self.erase_archive(!gone);
        answer.give(done);
    }

    /// The task of a document or of a device VM's call panicked.
    pub(super) fn handover_panicked(&mut self, task: Id) -> bool {
        if self.handing_over.device == Some(task) {
            self.handing_over.device = None;
            // Nobody has removed what the VM was given.
            self.erase_archive(true);
            return true;
        }
        let Some(item) = self.handing_over.viewers.remove(&task) else { return false };
        let told = failure(FailureKind::Internal, "opening it met a fault: see the daemon's log");
        self.emit(Event::Viewer { item, step: ViewerStep::Failed(told) });
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::EngineParts;
    use crate::store::Store;

    /// An engine that can neither make nor remove what a device VM is given.
    async fn stuck(directory: &std::path::Path) -> Engine {
        let store = Store::open(directory).unwrap();
        let (engine, _handle) = Engine::new(EngineParts::without_qrexec(directory, store)).await.unwrap();
        let viewing = directory.join("viewing");
        std::fs::remove_dir(&viewing).unwrap();
        std::fs::write(viewing, "").unwrap();
        engine
    }

    /// Of how many things `status` says that they could not be erased, once nothing more is done.
    async fn told(engine: &mut Engine) -> Option<u64> {
        while let Some(ended) = engine.tasks.join_next_with_id().await {
            engine.ended(ended).await;
        }
        engine.erasing.fault.as_ref().map(|fault| fault.items)
    }

    /// Case D4.
    #[tokio::test]
    async fn d4_an_archive_that_failed_and_cannot_be_removed_is_not_told_as_gone() {
        let directory = tempfile::tempdir().unwrap();
        let mut engine = stuck(directory.path()).await;
        let (answer, waiting) = tokio::sync::oneshot::channel();
        engine.have_device_do(DeviceTask::CheckDrive, Answer::new(answer));
        assert_eq!(told(&mut engine).await, Some(1));
        assert!(waiting.await.unwrap().is_err());
    }

    /// Case D4.
    #[tokio::test]
    async fn d4_what_a_call_that_panicked_has_left_is_removed_or_told_of() {
        let directory = tempfile::tempdir().unwrap();
        let mut engine = stuck(directory.path()).await;
        let task = engine.tasks.spawn(async { panic!("a fault, which the test wants") }).id();
        engine.handing_over.device = Some(task);
        assert_eq!(told(&mut engine).await, Some(1));
        assert!(engine.handing_over.has_no_device_call());
    }
}

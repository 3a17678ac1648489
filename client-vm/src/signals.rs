//! The signals that tell a program to end: Ctrl-C (SIGINT), SIGTERM, and its terminal's end (SIGHUP).
//!
//! **Invariant:** SIGHUP stays ignored if it was when the program began, as `nohup` wants it.

use std::io;

use tokio::signal::unix::{Signal, SignalKind, signal};

/// Where Linux says which signals a process ignores (proc_pid_status(5)).
const STATUS: &str = "/proc/self/status";
const IGNORED: &str = "SigIgn:";

/// The signals that tell this program to end. From when they are caught they do nothing by themselves, even if this is
/// dropped.
#[derive(Debug)]
pub(crate) struct EndSignals {
    interrupt: Signal,
    terminate: Signal,
    hangup: Option<Signal>,
}

impl EndSignals {
    pub(crate) fn catch() -> io::Result<Self> {
        // Where it is not known, nothing is ignored.
        let ignored = std::fs::read_to_string(STATUS).ok().and_then(|status| ignored(&status)).unwrap_or_default();
        let hangup = SignalKind::hangup();
        Ok(Self {
            interrupt: signal(SignalKind::interrupt())?,
            terminate: signal(SignalKind::terminate())?,
            hangup: if is_in(ignored, hangup) { None } else { Some(signal(hangup)?) },
        })
    }

    /// Waits for any of them. Cancel-safe.
    pub(crate) async fn any(&mut self) {
        let hangup = async {
            match &mut self.hangup {
                Some(hangup) => hangup.recv().await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            _ = self.interrupt.recv() => {}
            _ = self.terminate.recv() => {}
            _ = hangup => {}
        }
    }
}

/// The set of ignored signals: signal 1 is the lowest bit.
fn ignored(status: &str) -> Option<u64> {
    let set = status.lines().find_map(|line| line.strip_prefix(IGNORED))?;
    u64::from_str_radix(set.trim(), 16).ok()
}

fn is_in(set: u64, kind: SignalKind) -> bool {
    let bit = kind.as_raw_value().checked_sub(1).and_then(|bit| u32::try_from(bit).ok());
    bit.and_then(|bit| set.checked_shr(bit)).is_some_and(|rest| rest & 1 == 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_set_of_signals_is_read_as_linux_writes_it() {
        let set = ignored("Name:\tsplitdrop\nSigBlk:\t0000000000000000\nSigIgn:\t0000000000001001\n").unwrap();
        assert!(is_in(set, SignalKind::hangup()) && is_in(set, SignalKind::pipe()));
        assert!(!is_in(set, SignalKind::interrupt()) && !is_in(set, SignalKind::terminate()));
        assert_eq!((ignored("Name:\tsplitdrop\n"), ignored("SigIgn:\tx\n")), (None, None));
    }
}

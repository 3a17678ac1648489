//! What happens, as `splitdrop watch` says it.

use serde_json::Value;
use tokio::io::{AsyncBufReadExt as _, BufReader, Lines};
use tokio::process::{Child, ChildStdout};

use super::{EVENT_DEADLINE, EnvironmentError, failed};

/// `splitdrop watch --json`, running; killed when dropped.
#[derive(Debug)]
pub struct Watch {
    lines: Lines<BufReader<ChildStdout>>,
    _child: Child,
}

impl Watch {
    pub(super) fn of(child: Child, stdout: ChildStdout) -> Self {
        Self { lines: BufReader::new(stdout).lines(), _child: child }
    }

    /// The next event.
    ///
    /// # Errors
    /// [`EnvironmentError::NoEvent`] when none comes for very long.
    pub async fn next(&mut self) -> Result<Value, EnvironmentError> {
        let line = tokio::time::timeout(EVENT_DEADLINE, self.lines.next_line())
            .await
            .map_err(|_| EnvironmentError::NoEvent)?
            .map_err(failed("read from `splitdrop watch`"))?
            .ok_or(EnvironmentError::NoEvent)?;
        serde_json::from_str(&line).map_err(|_| EnvironmentError::NotJson("watch".to_owned()))
    }

    /// The next event of this name; others are passed over.
    ///
    /// # Errors
    /// As [`Self::next`].
    pub async fn until(&mut self, name: &str) -> Result<Value, EnvironmentError> {
        loop {
            let event = self.next().await?;
            if event.pointer("/event").and_then(Value::as_str) == Some(name) {
                return Ok(event);
            }
        }
    }
}

//! What happens, as `splitdrop watch` says it.

use std::time::Duration;

use serde_json::Value;
use tokio::io::{AsyncBufReadExt as _, BufReader, Lines};
use tokio::process::{Child, ChildStdout};

use super::{EnvironmentError, failed};

/// How long an event may take to come, and one of a certain name while others come: bounds for what hangs, not measures.
const EVENT_DEADLINE: Duration = Duration::from_secs(120);
const NAMED_EVENT_DEADLINE: Duration = Duration::from_secs(300);

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
    /// As [`Self::next`]; [`EnvironmentError::OtherEvents`] when only others come for very long.
    pub async fn until(&mut self, name: &str) -> Result<Value, EnvironmentError> {
        self.until_within(NAMED_EVENT_DEADLINE, name).await
    }

    /// Waits until this act is done: the server's answer says so (`confirmed`), or a snapshot that came first shows it
    /// (`settled`). Which of the two it is where a sync runs beside the act is a matter of moments.
    ///
    /// # Errors
    /// As [`Self::until`]; [`EnvironmentError::NotDone`] when the act ends otherwise.
    pub async fn until_done(&mut self, act: u64) -> Result<Value, EnvironmentError> {
        loop {
            let event = self.until("act").await?;
            if event.pointer("/act").and_then(Value::as_u64) != Some(act) {
                continue;
            }
            match event.pointer("/step").and_then(Value::as_str) {
                Some("confirmed" | "settled") => return Ok(event),
                Some("refused" | "gone" | "not_listed") => return Err(EnvironmentError::NotDone(event)),
                _other => {}
            }
        }
    }

    async fn until_within(&mut self, bound: Duration, name: &str) -> Result<Value, EnvironmentError> {
        let found = async {
            loop {
                let event = self.next().await?;
                if event.pointer("/event").and_then(Value::as_str) == Some(name) {
                    return Ok(event);
                }
            }
        };
        let late = || EnvironmentError::OtherEvents { name: name.to_owned(), bound };
        tokio::time::timeout(bound, found).await.unwrap_or_else(|_| Err(late()))
    }
}

#[cfg(test)]
mod tests {
    use std::process::Stdio;

    use tokio::process::Command;

    use super::*;

    /// A watch that prints what a shell does.
    fn watch(line: &str) -> Watch {
        let mut command = Command::new("/bin/sh");
        let mut child = command.args(["-c", line]).stdout(Stdio::piped()).kill_on_drop(true).spawn().unwrap();
        let stdout = child.stdout.take().unwrap();
        Watch::of(child, stdout)
    }

    #[tokio::test]
    async fn other_events_are_passed_over_but_not_for_ever() {
        let mut found = watch(r#"echo '{"event":"a"}'; echo '{"event":"b","it":1}'; exec cat"#);
        assert_eq!(found.until("b").await.unwrap().pointer("/it").unwrap(), 1);
        let mut never = watch(r#"exec yes '{"event":"a"}'"#);
        let error = never.until_within(Duration::from_millis(50), "b").await.unwrap_err();
        assert!(matches!(&error, EnvironmentError::OtherEvents { name, .. } if name == "b"), "{error}");
        // One that has ended has no events.
        assert!(matches!(watch("exit 0").until("b").await, Err(EnvironmentError::NoEvent)));
    }

    #[tokio::test]
    async fn an_act_is_done_by_its_answer_or_by_a_snapshot() {
        let events = r#"
            {"event":"act","act":1,"step":"confirmed"}
            {"event":"act","act":2,"step":"postponed"}
            {"event":"act","act":2,"step":"settled"}
            {"event":"act","act":3,"step":"gone"}
            {"event":"act","act":4,"step":"confirmed"}"#;
        let mut watch = watch(&format!("echo '{events}' | tail -n +2; exec cat"));
        assert_eq!(watch.until_done(2).await.unwrap().pointer("/step").unwrap(), "settled");
        let error = watch.until_done(3).await.unwrap_err();
        assert!(matches!(error, EnvironmentError::NotDone(_)), "{error}");
        assert_eq!(watch.until_done(4).await.unwrap().pointer("/step").unwrap(), "confirmed");
    }
}

//! Waiting until the client has looked at the sources' keys, which it does soon after the sync that brings them.

use serde_json::Value;

use super::{Environment, EnvironmentError};
use crate::generator::Account;

impl Environment {
    /// What `splitdrop sources` prints once every key that a source is offered with was looked at. A list from before differs
    /// from the next one, and a source in it cannot be answered yet. The event that tells of it may come a little later:
    /// where that matters there is [`Self::first_login`].
    ///
    /// # Errors
    /// [`EnvironmentError`].
    pub async fn listed_with_keys(&self) -> Result<Value, EnvironmentError> {
        let listed = self.json(&["sources"], "").await?;
        if !has_key(&listed, |state| state == "new") {
            return Ok(listed);
        }
        let mut watch = self.watch().await?;
        loop {
            let listed = self.json(&["sources"], "").await?;
            if !has_key(&listed, |state| state == "new") {
                return Ok(listed);
            }
            watch.until("sources_changed").await?;
        }
    }

    /// Signs an account in where nobody was before, syncs, and waits for all that comes of it: no event of it is seen by who
    /// watches from then on, and every key was looked at. The sources are at most as many as an event names.
    ///
    /// # Errors
    /// [`EnvironmentError`].
    pub async fn first_login(&self, account: &Account) -> Result<(), EnvironmentError> {
        let mut watch = self.watch().await?;
        self.login(account).await?;
        self.json(&["refresh"], "").await?;
        let listed = self.json(&["sources"], "").await?;
        if has_key(&listed, |state| state != "none") {
            // That the sources have come, and then that their keys were looked at.
            watch.until("sources_changed").await?;
            watch.until("sources_changed").await?;
        }
        Ok(())
    }
}

/// Whether a listed source has a key in such a state.
fn has_key(listed: &Value, is_such: impl Fn(&str) -> bool) -> bool {
    let sources = listed.pointer("/sources").and_then(Value::as_array);
    let state = |source: &Value| source.pointer("/key/state").and_then(Value::as_str).is_some_and(&is_such);
    sources.is_some_and(|sources| sources.iter().any(state))
}

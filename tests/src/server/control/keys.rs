//! Sources' keys, from the pool and from anywhere.

use std::sync::Arc;

use sequoia_openpgp::Cert;
use sequoia_openpgp::parse::Parse;
use sequoia_openpgp::serialize::SerializeInto;

use super::super::world::{RecordId, SourceKey, WorldError};
use super::{Control, ControlError, KeyChoice, Outcome};
use crate::generator::pool;

impl Control {
    pub(super) fn key(&self, choice: KeyChoice) -> Result<Option<Arc<SourceKey>>, ControlError> {
        let keys = pool();
        match choice {
            KeyChoice::None => Ok(None),
            KeyChoice::Any => Ok(self.desk.maker().prng.pick(&keys).cloned()),
            KeyChoice::Pool(at) => match keys.get(at) {
                Some(key) => Ok(Some(Arc::clone(key))),
                None => Err(ControlError::NoKey(at)),
            },
        }
    }

    pub(super) fn set_source_key(
        &self,
        source: &RecordId,
        armor: Option<String>,
        fingerprint: Option<String>,
    ) -> Result<Outcome, ControlError> {
        let mut key = armor.as_deref().map(read).transpose()?;
        let mut world = self.desk.world();
        let owner = world.source(source.as_str()).ok_or_else(|| WorldError::NoSource(source.clone()))?;
        if let Some(fingerprint) = fingerprint {
            let whole = match &key {
                Some(key) => key,
                None => owner.key.as_deref().ok_or_else(|| ControlError::KeyText("the source has none".to_owned()))?,
            };
            key = Some(whole.saying(&fingerprint));
        }
        world.set_key(source, key.map(Arc::new))?;
        Ok(Outcome::Done)
    }
}

/// A key as a server has it, of armor with or without the secret half.
fn read(armor: &str) -> Result<SourceKey, ControlError> {
    let wrong = |error: anyhow::Error| ControlError::KeyText(error.to_string());
    let cert = Cert::from_bytes(armor).map_err(wrong)?;
    let fingerprint = cert.fingerprint().to_hex();
    if !cert.is_tsk() {
        return Ok(SourceKey::new(&fingerprint, armor));
    }
    let public = cert.strip_secret_key_material().armored().to_vec().map_err(wrong)?;
    let public = String::from_utf8(public).map_err(|error| wrong(error.into()))?;
    Ok(SourceKey::with_secret(&fingerprint, &public, armor.to_owned()))
}

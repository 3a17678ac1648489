//! The keys of sources: pinned at first sight, and replaced only by themselves or on somebody's word.
//!
//! **Invariant:** a reply is encrypted only to a pinned key, and only while the server offers that key, in whatever good
//! form, or none.
//!
//! **Invariant:** the pinned key of a source changes its form as often as the server sends another good one of the same
//! primary fingerprint, and its fingerprint only by [`trust`].

use control::{KeyProblem, KeyState};
use protocol::value::{ArmoredKey, Fingerprint, SourceId, ValueError};
use rusqlite::{OptionalExtension as _, Transaction, params};

use super::StoreError;

/// A key that the server offers and that nobody has looked at.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Offered {
    /// Whose.
    pub source: SourceId,
    /// The fingerprint that the server claims of it.
    pub claimed: Fingerprint,
    /// The key.
    pub armored: ArmoredKey,
    /// The fingerprint of the key that is pinned.
    pub pinned: Option<Fingerprint>,
}

/// What an offered key was found to be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Finding {
    /// It can be used and is what the server claims.
    Good,
    /// It cannot be.
    Bad {
        /// What is wrong with it.
        problem: KeyProblem,
        /// The fingerprint that it says itself, if it can be read.
        fingerprint: Option<Fingerprint>,
        /// The problem in words.
        detail: String,
    },
}

/// What is told when the server offers another key than the pinned one.
pub const CHANGED: &str = "the server offers another key than before: compare fingerprints with the source, and then run \
                           `splitdrop trust-key SOURCE --fingerprint FPR`";

/// Reduces what is held of keys to which key was pinned; a condition follows. Where the source is there again, no other key
/// may pass for the first one.
pub(super) const REDUCE: &str = "UPDATE local_key SET armored = '', offered_armored = '', offered_claim = fingerprint,
    offered_fingerprint = fingerprint, looked_at = 0, problem = NULL, detail = NULL WHERE armored <> '' AND";

/// A key could not be trusted. Nothing has changed.
#[derive(Debug, thiserror::Error)]
pub enum TrustError {
    /// No such source is shown.
    #[error("there is no source {0}")]
    NoSource(SourceId),
    /// The server offers no key of it.
    #[error("the server has no key of {0} yet")]
    NoKey(SourceId),
    /// It is not the key that the server offers.
    #[error(
        "the key that the server offers has the fingerprint {}: compare it with the source, and name that one",
        .offered.as_str()
    )]
    Other {
        /// The offered key's.
        offered: Fingerprint,
    },
    /// It is, and nothing can be encrypted to it.
    #[error("the key cannot be used: {detail}")]
    Unusable {
        /// Why.
        detail: String,
    },
    /// The store failed.
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl From<rusqlite::Error> for TrustError {
    fn from(error: rusqlite::Error) -> Self {
        Self::Store(error.into())
    }
}

impl From<ValueError> for TrustError {
    fn from(error: ValueError) -> Self {
        Self::Store(error.into())
    }
}

/// How the key of a source stands.
///
/// # Errors
/// [`StoreError`].
pub fn state(transaction: &Transaction<'_>, source: SourceId) -> Result<KeyState, StoreError> {
    let found = transaction
        .prepare_cached(
            "SELECT s.key_fingerprint, CASE WHEN k.armored <> '' THEN k.fingerprint END, k.problem, k.offered_fingerprint, k.detail,
                    coalesce(k.looked_at, 0)
             FROM server_source AS s LEFT JOIN local_key AS k ON k.source_id = s.id
             WHERE s.id = ?1",
        )?
        .query_row([source.as_str()], |row| {
            Ok(Columns {
                claimed: row.get(0)?,
                pinned: row.get(1)?,
                problem: row.get(2)?,
                offered: row.get(3)?,
                detail: row.get(4)?,
                looked_at: row.get(5)?,
            })
        })
        .optional()?;
    found.map_or(Ok(KeyState::None), Columns::state)
}

/// What the columns of a source and of its key say.
#[derive(Debug)]
pub(super) struct Columns {
    pub(super) claimed: Option<String>,
    pub(super) pinned: Option<String>,
    pub(super) problem: Option<String>,
    pub(super) offered: Option<String>,
    pub(super) detail: Option<String>,
    /// Whether what the server offers now is what was looked at.
    pub(super) looked_at: bool,
}

impl Columns {
    pub(super) fn state(self) -> Result<KeyState, StoreError> {
        let pinned = self.pinned.map(Fingerprint::try_new).transpose()?;
        let claimed = self.claimed.map(Fingerprint::try_new).transpose()?;
        let problem = self.problem.as_deref().map(parse_problem).transpose()?;
        Ok(match (claimed, pinned, problem) {
            (claimed, pinned, Some(problem)) => KeyState::Held {
                problem,
                offered: match self.offered.map(Fingerprint::try_new).transpose()?.or(claimed) {
                    Some(offered) => offered,
                    None => return Ok(KeyState::None),
                },
                pinned,
                detail: self.detail.unwrap_or_default(),
            },
            // The server says that there is no key any more: the pinned one stays, and serves.
            (None, Some(fingerprint), None) => KeyState::Pinned { fingerprint },
            (None, None, None) => KeyState::None,
            (Some(_), Some(fingerprint), None) if self.looked_at => KeyState::Pinned { fingerprint },
            (Some(offered), _, None) => KeyState::New { offered },
        })
    }
}

fn parse_problem(text: &str) -> Result<KeyProblem, ValueError> {
    match text {
        "changed" => Ok(KeyProblem::Changed),
        "mismatch" => Ok(KeyProblem::Mismatch),
        "unusable" => Ok(KeyProblem::Unusable),
        _ => Err(ValueError { what: "a key's problem", problem: protocol::value::Problem::Malformed }),
    }
}

fn problem_name(problem: KeyProblem) -> &'static str {
    match problem {
        KeyProblem::Changed => "changed",
        KeyProblem::Mismatch => "mismatch",
        KeyProblem::Unusable => "unusable",
    }
}

/// Notes that the server offers this key of a source, or none: another one than before is to be looked at.
pub(super) fn note_offered(
    transaction: &Transaction<'_>,
    source: SourceId,
    key: Option<(&ArmoredKey, &Fingerprint)>,
) -> rusqlite::Result<()> {
    transaction
        .prepare_cached(
            "UPDATE local_key SET looked_at = 0
             WHERE source_id = ?1 AND (offered_armored IS NOT ?2 OR offered_claim IS NOT ?3)",
        )?
        .execute(params![
            source.as_str(),
            key.map(|(armored, _)| armored.as_str()),
            key.map(|(_, fingerprint)| fingerprint.as_str())
        ])?;
    Ok(())
}

/// The ids of the sources with keys that are offered and that nobody has looked at.
pub(super) const NOT_LOOKED_AT: &str =
    "SELECT s.id FROM server_source AS s LEFT JOIN local_key AS k ON k.source_id = s.id
     WHERE s.key_fingerprint IS NOT NULL AND NOT coalesce(k.looked_at, 0)";

/// Lets keys that could not be used be looked at again: the clock may have been wrong, or this program is another one.
///
/// # Errors
/// [`StoreError`].
pub fn look_again(transaction: &Transaction<'_>) -> Result<(), StoreError> {
    transaction.execute("UPDATE local_key SET looked_at = 0 WHERE problem = 'unusable'", [])?;
    Ok(())
}

/// Keys that are offered and that nobody has looked at, at most `most`.
///
/// # Errors
/// [`StoreError`].
pub fn to_look_at(transaction: &Transaction<'_>, most: usize) -> Result<Vec<Offered>, StoreError> {
    let mut statement = transaction.prepare_cached(&format!(
        "SELECT s.id, s.key_fingerprint, s.key_armored, k.fingerprint
         FROM server_source AS s LEFT JOIN local_key AS k ON k.source_id = s.id
         WHERE s.id IN ({NOT_LOOKED_AT}) AND s.key_armored IS NOT NULL AND s.designation IS NOT NULL
         LIMIT ?1"
    ))?;
    let mut rows = statement.query([i64::try_from(most).unwrap_or(i64::MAX)])?;
    let mut offered = Vec::new();
    while let Some(row) = rows.next()? {
        offered.push(Offered {
            source: row.get::<_, String>(0)?.parse()?,
            claimed: Fingerprint::try_new(row.get::<_, String>(1)?)?,
            armored: ArmoredKey::try_new(row.get::<_, String>(2)?)?,
            pinned: row.get::<_, Option<String>>(3)?.map(Fingerprint::try_new).transpose()?,
        });
    }
    Ok(offered)
}

/// Notes what an offered key was found to be: a good one is pinned where none is, and takes the place of the pinned one of
/// the same fingerprint. Gives the problem, if it is new, or another
/// key's.
///
/// # Errors
/// [`StoreError`].
pub fn note(
    transaction: &Transaction<'_>,
    offered: &Offered,
    finding: &Finding,
) -> Result<Option<KeyProblem>, StoreError> {
    let source = offered.source.as_str();
    let before: Option<(Option<String>, Option<String>, String)> = transaction
        .prepare_cached("SELECT fingerprint, problem, offered_fingerprint FROM local_key WHERE source_id = ?1")?
        .query_row([source], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)))
        .optional()?;
    let pinned = before.as_ref().and_then(|(pinned, ..)| pinned.clone());
    let (problem, fingerprint, detail) = match finding {
        Finding::Good if pinned.as_deref().is_none_or(|pinned| pinned == offered.claimed.as_str()) => {
            transaction
                .prepare_cached(
                    "INSERT INTO local_key
                         (source_id, fingerprint, armored, offered_armored, offered_claim, offered_fingerprint)
                     VALUES (?1, ?2, ?3, ?3, ?2, ?2)
                     ON CONFLICT DO UPDATE SET fingerprint = ?2, armored = ?3, offered_armored = ?3,
                         offered_claim = ?2, offered_fingerprint = ?2, problem = NULL, detail = NULL",
                )?
                .execute(params![source, offered.claimed.as_str(), offered.armored.as_str()])?;
            note_looked_at(transaction, offered)?;
            return Ok(None);
        }
        Finding::Good => (KeyProblem::Changed, offered.claimed.clone(), CHANGED.to_owned()),
        Finding::Bad { problem, fingerprint, detail } => {
            (*problem, fingerprint.clone().unwrap_or_else(|| offered.claimed.clone()), detail.clone())
        }
    };
    transaction
        .prepare_cached(
            "INSERT INTO local_key
                 (source_id, offered_armored, offered_claim, offered_fingerprint, problem, detail)
             VALUES (?1, ?2, ?3, ?4, ?5, ?6)
             ON CONFLICT DO UPDATE SET offered_armored = ?2, offered_claim = ?3, offered_fingerprint = ?4,
                 problem = ?5, detail = ?6",
        )?
        .execute(params![
            source,
            offered.armored.as_str(),
            offered.claimed.as_str(),
            fingerprint.as_str(),
            problem_name(problem),
            detail
        ])?;
    note_looked_at(transaction, offered)?;
    let known = before
        .is_some_and(|(_, known, of)| known.as_deref() == Some(problem_name(problem)) && of == fingerprint.as_str());
    Ok((!known).then_some(problem))
}

/// What was looked at counts only while it is what the server offers: a snapshot may have come in between.
fn note_looked_at(transaction: &Transaction<'_>, offered: &Offered) -> rusqlite::Result<()> {
    transaction
        .prepare_cached(
            "UPDATE local_key SET looked_at = EXISTS (
                 SELECT 1 FROM server_source WHERE id = ?1 AND key_armored = ?2 AND key_fingerprint = ?3
             ) WHERE source_id = ?1",
        )?
        .execute(params![offered.source.as_str(), offered.armored.as_str(), offered.claimed.as_str()])?;
    Ok(())
}

/// Pins the key that the server offers, on somebody's word: `fingerprint` is what was compared. `usable` says of a key
/// whether it can be used, and of what fingerprint it is.
///
/// # Errors
/// [`TrustError`]; the caller's transaction must then not be committed.
pub fn trust(
    transaction: &Transaction<'_>,
    source: SourceId,
    fingerprint: &Fingerprint,
    usable: impl FnOnce(&ArmoredKey) -> Result<Fingerprint, String>,
) -> Result<(), TrustError> {
    let found: Option<(Option<String>, Option<String>)> = transaction
        .prepare_cached(
            "SELECT s.key_fingerprint, s.key_armored FROM server_source AS s
             WHERE s.id = ?1 AND s.id IN (SELECT id FROM visible_source)",
        )?
        .query_row([source.as_str()], |row| Ok((row.get(0)?, row.get(1)?)))
        .optional()?;
    let (claimed, armored) = found.ok_or(TrustError::NoSource(source))?;
    let (Some(claimed), Some(armored)) = (claimed, armored) else { return Err(TrustError::NoKey(source)) };
    let armored = ArmoredKey::try_new(armored)?;
    let own = usable(&armored).map_err(|detail| TrustError::Unusable { detail })?;
    if own != *fingerprint {
        return Err(TrustError::Other { offered: own });
    }
    transaction
        .prepare_cached(
            "INSERT INTO local_key
                 (source_id, fingerprint, armored, offered_armored, offered_claim, offered_fingerprint)
             VALUES (?1, ?2, ?3, ?3, ?4, ?2)
             ON CONFLICT DO UPDATE SET fingerprint = ?2, armored = ?3, offered_armored = ?3, offered_claim = ?4,
                 offered_fingerprint = ?2, looked_at = 1, problem = NULL, detail = NULL",
        )?
        .execute(params![source.as_str(), own.as_str(), armored.as_str(), claimed])?;
    Ok(())
}

/// The pinned key of a source, while nothing is wrong with what the server offers.
///
/// # Errors
/// [`StoreError`].
pub fn pinned(
    transaction: &Transaction<'_>,
    source: SourceId,
) -> Result<Result<(Fingerprint, ArmoredKey), KeyState>, StoreError> {
    let state = state(transaction, source)?;
    let KeyState::Pinned { fingerprint } = state else { return Ok(Err(state)) };
    let armored: String = transaction
        .prepare_cached("SELECT armored FROM local_key WHERE source_id = ?1")?
        .query_row([source.as_str()], |row| row.get(0))?;
    Ok(Ok((fingerprint, ArmoredKey::try_new(armored)?)))
}

/// How many sources' keys are held back.
///
/// # Errors
/// [`StoreError`].
pub fn held(transaction: &Transaction<'_>) -> Result<u64, StoreError> {
    Ok(transaction.query_row(
        "SELECT count(*) FROM local_key WHERE problem IS NOT NULL AND source_id IN (SELECT id FROM visible_source)",
        [],
        |row| row.get(0),
    )?)
}

#[cfg(test)]
mod tests;

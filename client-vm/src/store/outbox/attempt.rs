//! Which rows are to be sent next, and the note that they are being sent.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use control::ActId;
use protocol::call::{MAX_DELETED, MAX_SEEN};
use protocol::value::{JournalistId, SourceId, Timestamp};
use rusqlite::{Transaction, params};

use super::grace::IN_GRACE;
use super::{Before, ROW, Row, Work, read_row};
use crate::store::StoreError;
use crate::store::keys::NOT_LOOKED_AT;

/// Rows of one source that are sent together: one row, or items of one conversation for one call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Batch {
    /// The rows, in their order; at least one.
    pub rows: Vec<Row>,
    /// Their source.
    pub source: SourceId,
    /// The first row's act.
    pub act: ActId,
    /// What the first row does.
    pub work: Work,
}

/// What can be sent.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Ready {
    /// What is due now, first come first served.
    pub batches: Vec<Batch>,
    /// How long until something more is due, if anything waits for its time.
    pub next: Option<Duration>,
    /// The clock was set back to before a time of grace began: it waits for all of it until that is mended.
    pub to_mend: bool,
}

/// What is to be sent of `journalist`'s rows now. Of the sources in `busy` something is being sent already. What needs the
/// user's word goes on without it where the act is one of `open`: dom0 has been asked about it, and its call is there. A
/// reply waits while the key that its source is offered with has not been looked at, and everything while the source's
/// removal is held.
///
/// # Errors
/// [`StoreError`].
pub fn ready(
    transaction: &Transaction<'_>,
    journalist: JournalistId,
    now: Timestamp,
    busy: &HashSet<SourceId>,
    open: &HashSet<ActId>,
) -> Result<Ready, StoreError> {
    let mut statement = transaction.prepare_cached(&format!(
        "SELECT {ROW}, held, kind = 'reply' AND source_id IN ({NOT_LOOKED_AT})
                    OR source_id IN (SELECT id FROM local_removed_source WHERE NOT kept),
                CASE WHEN wait_from_us IS NULL THEN 0
                     WHEN ?2 < wait_from_us THEN CASE WHEN {IN_GRACE} THEN wait_us ELSE 0 END
                     ELSE max(wait_from_us + wait_us - ?2, 0) END,
                ?2 < wait_from_us AND {IN_GRACE}
         FROM outbox
         WHERE journalist_id = ?1 AND state IN ('pending', 'attempted')
         ORDER BY kind = 'delete_source' DESC, id"
    ))?;
    let mut rows = statement.query(params![journalist.as_str(), now.as_i64()])?;
    let (mut heads, mut to_mend): (HashMap<SourceId, Head>, bool) = (HashMap::new(), false);
    while let Some(sql) = rows.next()? {
        let row = read_row(sql)?;
        to_mend |= sql.get::<_, Option<bool>>(11)?.unwrap_or(false);
        if busy.contains(&row.source) {
            continue;
        }
        // A reply that was sent waits for a snapshot.
        let is_reply = matches!(row.work, Work::Reply(_));
        let sent = is_reply && row.before == Before::Attempted;
        let (held, barred): (bool, bool) = (sql.get(8)?, sql.get(9)?);
        // An open call answers dom0's question, and no other.
        let held = sent || barred || held && (is_reply || !open.contains(&row.act));
        let due = Due { held, wait: Duration::from_micros(sql.get(10)?) };
        match heads.get_mut(&row.source) {
            Some(head) => head.join(row, due),
            None => {
                heads.insert(row.source, Head::new(row, due));
            }
        }
    }
    let mut ready = Ready { to_mend, ..Ready::default() };
    for (source, head) in heads {
        match head.wait {
            Some(Duration::ZERO) => {
                ready.batches.push(Batch { source, act: head.act, work: head.work, rows: head.rows });
            }
            Some(wait) => ready.next = Some(ready.next.map_or(wait, |next| next.min(wait))),
            None => {}
        }
    }
    ready.batches.sort_unstable_by_key(|batch| batch.rows.first().map(|row| row.id));
    Ok(ready)
}

struct Due {
    held: bool,
    wait: Duration,
}

/// The first row of a source, with those that go with it.
struct Head {
    act: ActId,
    work: Work,
    /// How long until it is due; `None` when only the user can say.
    wait: Option<Duration>,
    rows: Vec<Row>,
    /// A row came that does not go with the first: nothing behind it may overtake it.
    closed: bool,
}

impl Head {
    fn new(row: Row, due: Due) -> Self {
        let wait = (!due.held).then_some(due.wait);
        Self { act: row.act, work: row.work, wait, rows: vec![row], closed: false }
    }

    fn join(&mut self, row: Row, due: Due) {
        let (alike, most) = match (self.work, row.work) {
            (Work::Seen(_), Work::Seen(_)) => (true, MAX_SEEN),
            (Work::DeleteItem(_), Work::DeleteItem(_)) => (self.act == row.act, MAX_DELETED),
            (
                Work::Star | Work::Unstar | Work::Seen(_) | Work::DeleteSource | Work::DeleteItem(_) | Work::Reply(_),
                _,
            ) => (false, 0),
        };
        self.closed |= !alike || self.rows.len() >= most;
        if !self.closed && !due.held && due.wait.is_zero() {
            self.rows.push(row);
        }
    }
}

/// Notes durably that the rows are being sent, and gives those that still are to be: one may have been taken back
/// meanwhile, or ended by a snapshot. `snapshot` is the last one that was asked for.
///
/// # Errors
/// [`StoreError`].
pub fn begin_attempt(transaction: &Transaction<'_>, rows: &[Row], snapshot: u64) -> Result<Vec<Row>, StoreError> {
    let mut still_there = Vec::with_capacity(rows.len());
    let mut select = transaction
        .prepare_cached(&format!("SELECT {ROW} FROM outbox WHERE id = ?1 AND state IN ('pending', 'attempted')"))?;
    let mut update = transaction.prepare_cached(
        "UPDATE outbox SET state = 'attempted', attempts = attempts + 1, snapshot = max(snapshot, ?2),
             in_flight = kind = 'reply', listed = 0, wait_from_us = NULL, wait_us = NULL
         WHERE id = ?1",
    )?;
    for row in rows {
        let mut found = select.query([row.id])?;
        if let Some(sql) = found.next()? {
            still_there.push(read_row(sql)?);
            drop(found);
            update.execute(params![row.id, i64::try_from(snapshot).unwrap_or(i64::MAX)])?;
        }
    }
    Ok(still_there)
}

//! Rows in the order in which they came, found by row number or by id.

use std::collections::{BTreeMap, HashMap};

use super::{RecordId, WorldError};

/// A table of the database.
#[derive(Debug, Clone)]
pub(super) struct Table<T> {
    next_row: u64,
    rows: BTreeMap<u64, T>,
    by_id: HashMap<RecordId, u64>,
}

impl<T> Default for Table<T> {
    fn default() -> Self {
        Self { next_row: 1, rows: BTreeMap::new(), by_id: HashMap::new() }
    }
}

impl<T> Table<T> {
    /// Adds a row and tells its number.
    pub(super) fn insert(&mut self, id: &RecordId, record: T) -> Result<u64, WorldError> {
        if self.by_id.contains_key(id) {
            return Err(WorldError::TakenId(id.clone()));
        }
        let row = self.next_row;
        self.next_row = row.wrapping_add(1);
        self.by_id.insert(id.clone(), row);
        self.rows.insert(row, record);
        Ok(row)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &T> {
        self.rows.values()
    }

    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = &mut T> {
        self.rows.values_mut()
    }

    pub(super) fn row(&self, row: u64) -> Option<&T> {
        self.rows.get(&row)
    }

    pub(super) fn get(&self, id: &str) -> Option<&T> {
        self.rows.get(self.by_id.get(id)?)
    }

    pub(super) fn get_mut(&mut self, id: &str) -> Option<&mut T> {
        self.rows.get_mut(self.by_id.get(id)?)
    }

    pub(super) fn remove(&mut self, id: &str) -> Option<(u64, T)> {
        let row = self.by_id.remove(id)?;
        Some((row, self.rows.remove(&row)?))
    }

    pub(super) fn remove_rows(&mut self, rows: &[u64], id: impl Fn(&T) -> &RecordId) {
        for row in rows {
            if let Some(record) = self.rows.remove(row) {
                self.by_id.remove(id(&record));
            }
        }
    }
}

//! Changes to one record of an answer.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::super::world::RecordId;

/// Which record of an answer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Which {
    /// The one at this place of the list, from 0. A single record is at place 0.
    Index(usize),
    /// The one with this `uuid`.
    Uuid(RecordId),
}

/// A change to a record. Fields are named by JSON pointers: `/key/public`, and the empty one is the record itself.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Edit {
    /// The field gets this value, whether it was there or not.
    Set {
        /// Which field.
        field: String,
        /// Any JSON.
        value: Value,
    },
    /// The field goes.
    Remove {
        /// Which field.
        field: String,
    },
}

impl Edit {
    /// The field gets this value.
    pub fn set(field: &str, value: impl Into<Value>) -> Self {
        Self::Set { field: field.to_owned(), value: value.into() }
    }

    /// The field goes.
    pub fn remove(field: &str) -> Self {
        Self::Remove { field: field.to_owned() }
    }

    fn apply(&self, record: &mut Value) {
        match self {
            Self::Set { field, value } if field.is_empty() => *record = value.clone(),
            Self::Set { field, value } => {
                if let Some((Value::Object(parent), name)) = parent(record, field) {
                    parent.insert(name.to_owned(), value.clone());
                }
            }
            Self::Remove { field } => {
                if let Some((Value::Object(parent), name)) = parent(record, field) {
                    parent.remove(name);
                }
            }
        }
    }
}

/// The object that holds a field, and the field's name in it.
fn parent<'a, 'f>(record: &'a mut Value, field: &'f str) -> Option<(&'a mut Value, &'f str)> {
    let (path, name) = field.rsplit_once('/')?;
    Some((record.pointer_mut(path)?, name))
}

/// Changes a record of `answer`, which is a record or an object with one list. Tells whether there was such a record.
pub(crate) fn apply(answer: &mut Value, which: &Which, edits: &[Edit]) -> bool {
    let list = answer
        .as_object_mut()
        .filter(|object| object.len() == 1)
        .and_then(|object| object.values_mut().next())
        .filter(|list| list.is_array())
        .is_some();
    let record = if list {
        let records =
            answer.as_object_mut().and_then(|object| object.values_mut().next()).and_then(Value::as_array_mut);
        records.and_then(|records| match which {
            Which::Index(at) => records.get_mut(*at),
            Which::Uuid(id) => records.iter_mut().find(|record| is(record, id)),
        })
    } else {
        Some(answer).filter(|record| match which {
            Which::Index(at) => *at == 0,
            Which::Uuid(id) => is(record, id),
        })
    };
    let Some(record) = record else {
        return false;
    };
    for edit in edits {
        edit.apply(record);
    }
    true
}

fn is(record: &Value, id: &RecordId) -> bool {
    record.get("uuid").and_then(Value::as_str) == Some(id.as_str())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn one_record_of_a_list_changes() {
        let mut answer = json!({"sources": [{"uuid": "a", "key": {"public": "k"}}, {"uuid": "b"}]});
        let edits = [
            Edit::set("/key/public", Value::Null),
            Edit::set("/interaction_count", 9_223_372_036_854_775_808_u64),
            Edit::remove("/uuid"),
        ];
        assert!(apply(&mut answer, &Which::Index(0), &edits));
        assert_eq!(
            answer,
            json!({"sources": [
                {"key": {"public": null}, "interaction_count": 9_223_372_036_854_775_808_u64},
                {"uuid": "b"},
            ]})
        );
        assert!(apply(&mut answer, &Which::Uuid("b".into()), &[Edit::set("", "not a record")]));
        assert_eq!(answer["sources"][1], json!("not a record"));
        assert!(!apply(&mut answer, &Which::Index(2), &edits));
        assert!(!apply(&mut answer, &Which::Uuid("a".into()), &edits));
    }

    #[test]
    fn a_record_alone_changes() {
        let mut answer = json!({"uuid": "a", "size": 1});
        assert!(!apply(&mut answer, &Which::Uuid("b".into()), &[Edit::remove("/size")]));
        assert!(apply(&mut answer, &Which::Uuid("a".into()), &[Edit::set("/size", 1.5)]));
        assert_eq!(answer, json!({"uuid": "a", "size": 1.5}));
    }
}

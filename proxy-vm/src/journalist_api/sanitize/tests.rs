use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;

const ID: &str = "3f1d0a52-7a1e-4b0c-9c55-0d9b6f2f8e01";
const OTHER: &str = "b64c2e17-90d3-4f4a-8a3e-5c7d1e2f3a02";
const THIRD: &str = "0c9e8d7b-6a5f-4e3d-8c2b-1a0f9e8d7c03";
const ARMORED: &str =
    "-----BEGIN PGP PUBLIC KEY BLOCK-----\nComment: made up\n\nAAAA\n-----END PGP PUBLIC KEY BLOCK-----\n";
const FINGERPRINT: &str = "00112233445566778899AABBCCDDEEFF00112233";

fn source_json() -> Value {
    json!({
        "add_star_url": format!("/api/v1/sources/{ID}/add_star"), "interaction_count": 6, "is_flagged": false,
        "is_starred": true, "journalist_designation": "gentle harbour",
        "key": {"fingerprint": FINGERPRINT, "public": ARMORED, "type": "PGP"},
        "last_updated": "2026-01-02T03:04:05.678901Z", "number_of_documents": 1, "number_of_messages": 2,
        "remove_star_url": "", "replies_url": "", "submissions_url": "", "url": format!("/api/v1/sources/{ID}"), "uuid": ID,
    })
}

fn submission_json() -> Value {
    json!({
        "download_url": "", "filename": "3-gentle_harbour-msg.gpg", "is_file": false, "is_message": true, "is_read": true,
        "seen_by": [OTHER, THIRD, OTHER], "size": 700, "source_url": format!("/api/v1/sources/{OTHER}"),
        "submission_url": "", "uuid": ID,
    })
}

fn reply_json() -> Value {
    json!({
        "filename": "12-gentle_harbour-reply.gpg", "is_deleted_by_source": false, "journalist_first_name": "",
        "journalist_last_name": "", "journalist_username": "deleted", "journalist_uuid": THIRD, "reply_url": "",
        "seen_by": [], "size": 1143, "source_url": format!("/api/v1/sources/{OTHER}"), "uuid": ID,
    })
}

fn user_json() -> Value {
    json!({"first_name": null, "last_name": "", "username": "ada", "uuid": ID})
}

fn with(mut record: Value, field: &str, value: Value) -> Value {
    record[field] = value;
    record
}

fn without(mut record: Value, field: &str) -> Value {
    record.as_object_mut().unwrap().remove(field);
    record
}

fn read<T: ServerRecord>(record: &Value) -> Listed<T> {
    listed(&record.to_string())
}

#[track_caller]
fn readable<T: ServerRecord>(record: &Value) -> T {
    match read(record) {
        Listed::Readable(record) => record,
        Listed::Unreadable(unreadable) => panic!("unreadable: {unreadable:?}"),
    }
}

#[track_caller]
fn assert_unreadable<T: ServerRecord>(record: &Value, field: Field) {
    let Listed::Unreadable(unreadable) = read::<T>(record) else { panic!("readable: {record}") };
    assert_eq!(unreadable.field, field, "{record}");
    let id = if field == Field::Id { None } else { Some(ID.to_owned()) };
    assert_eq!(unreadable.id.map(|id| id.to_string()), id, "{record}");
}

#[test]
fn reads_every_field() {
    let source: Source = readable(&source_json());
    assert_eq!(source.id.as_str(), ID);
    assert_eq!(source.designation.as_str(), "gentle harbour");
    assert!(source.starred);
    assert_eq!(source.last_updated.get(), 1_767_323_045_678_901);
    assert_eq!(source.interactions.get(), 6);
    let key = source.key.unwrap();
    assert_eq!((key.armored.as_str(), key.fingerprint.as_str()), (ARMORED, FINGERPRINT));

    let submission: Submission = readable(&submission_json());
    assert_eq!((submission.source.as_str(), submission.kind), (OTHER, SubmissionKind::Message));
    assert_eq!((submission.order.get(), submission.size.get(), submission.read), (3, 700, true));
    assert_eq!(submission.filename.unwrap().as_str(), "3-gentle_harbour-msg.gpg");
    let seen: Vec<_> = submission.seen_by.as_slice().iter().map(JournalistId::as_str).collect();
    assert_eq!(seen, [THIRD, OTHER]);

    let reply: Reply = readable(&reply_json());
    assert_eq!((reply.source.as_str(), reply.author.as_str(), reply.order.get()), (OTHER, THIRD, 12));
    assert_eq!((reply.size.get(), reply.deleted_by_source), (1143, false));

    let journalist: Journalist = readable(&user_json());
    assert_eq!((journalist.username.as_str(), journalist.first_name, journalist.last_name), ("ada", None, None));
}

#[test]
fn reads_what_older_and_newer_servers_add_or_leave_out() {
    let newer = with(with(source_json(), "has_attachment", json!(true)), "is_seen", json!(false));
    readable::<Source>(&with(newer, "last_updated", json!("2026-01-02T03:04:05")));
    readable::<Source>(&without(source_json(), "is_flagged"));
    readable::<Reply>(&without(reply_json(), "journalist_username"));
    readable::<Journalist>(&with(user_json(), "is_admin", json!(true)));
}

#[test]
fn a_source_has_a_key_or_none_and_nothing_between() {
    let key = |public: Value, fingerprint: Value| json!({"type": "PGP", "public": public, "fingerprint": fingerprint});
    assert_eq!(readable::<Source>(&with(source_json(), "key", key(json!(null), json!(null)))).key, None);
    for bad in [
        key(json!(ARMORED), json!(null)),
        key(json!(null), json!(FINGERPRINT)),
        key(json!(""), json!("")),
        key(json!(ARMORED), json!(FINGERPRINT.to_lowercase())),
        key(json!("-----BEGIN PGP PRIVATE KEY BLOCK-----"), json!(FINGERPRINT)),
        json!(null),
        json!("PGP"),
        json!([null, null]),
    ] {
        assert_unreadable::<Source>(&with(source_json(), "key", bad), Field::Key);
    }
}

#[test]
fn s9_a_bad_record_is_unreadable_and_keeps_its_id() {
    let big = json!(9_223_372_036_854_775_808_u64);
    for (field, value, named) in [
        ("uuid", json!("not-a-uuid"), Field::Id),
        ("uuid", json!(ID.replace('-', "")), Field::Id),
        ("uuid", json!(null), Field::Id),
        ("uuid", json!(7), Field::Id),
        ("journalist_designation", json!(""), Field::Designation),
        ("journalist_designation", json!("  "), Field::Designation),
        ("journalist_designation", json!("a\nb"), Field::Designation),
        ("journalist_designation", json!(null), Field::Designation),
        ("interaction_count", json!(-1), Field::Order),
        ("interaction_count", json!(1.5), Field::Order),
        ("interaction_count", json!("6"), Field::Order),
        ("interaction_count", big.clone(), Field::Order),
        ("is_starred", json!("yes"), Field::Record),
        ("is_starred", json!(null), Field::Record),
        ("last_updated", json!("yesterday"), Field::LastUpdated),
        ("last_updated", json!(1_700_000_000), Field::LastUpdated),
        ("last_updated", json!(null), Field::LastUpdated),
    ] {
        assert_unreadable::<Source>(&with(source_json(), field, value), named);
        assert_unreadable::<Source>(&without(source_json(), field), named);
    }
    for (field, value, named) in [
        ("source_url", json!(null), Field::Source),
        ("source_url", json!(format!("/api/v1/sources/{OTHER}/")), Field::Source),
        ("source_url", json!(format!("http://elsewhere/api/v1/sources/{OTHER}")), Field::Source),
        ("source_url", json!(OTHER), Field::Source),
        ("size", json!(-1), Field::Size),
        ("size", json!(1.5), Field::Size),
        ("size", big, Field::Size),
        ("seen_by", json!(null), Field::SeenBy),
        ("seen_by", json!(["x"]), Field::SeenBy),
        ("seen_by", json!({}), Field::SeenBy),
        ("filename", json!("../../.config/autostart/x.desktop"), Field::Filename),
        ("filename", json!("1-a/b"), Field::Filename),
        ("filename", json!("1-a\u{0}b"), Field::Filename),
        ("filename", json!("1-a\nb"), Field::Filename),
        ("filename", json!(".."), Field::Filename),
        ("filename", json!(""), Field::Filename),
        ("filename", json!(format!("1-{}", "x".repeat(5000))), Field::Filename),
        ("filename", json!(null), Field::Filename),
        ("filename", json!("-rf"), Field::Order),
        ("filename", json!("msg.gpg"), Field::Order),
        ("filename", json!("-1-x-msg.gpg"), Field::Order),
        ("filename", json!("+1-x-msg.gpg"), Field::Order),
        ("filename", json!("1.5-x-msg.gpg"), Field::Order),
        ("filename", json!("\u{661}-x-msg.gpg"), Field::Order),
        ("filename", json!("9223372036854775808-x-msg.gpg"), Field::Order),
        ("filename", json!("99999999999999999999999-x-msg.gpg"), Field::Order),
    ] {
        assert_unreadable::<Submission>(&with(submission_json(), field, value.clone()), named);
        assert_unreadable::<Reply>(&with(reply_json(), field, value), named);
    }
    for (field, value, named) in [
        ("is_file", json!(true), Field::Kind),
        ("is_message", json!(false), Field::Kind),
        ("is_message", json!("true"), Field::Kind),
        ("is_message", json!(null), Field::Kind),
        ("is_read", json!(0), Field::Record),
    ] {
        assert_unreadable::<Submission>(&with(submission_json(), field, value), named);
    }
    assert_unreadable::<Reply>(&with(reply_json(), "journalist_uuid", json!(null)), Field::Author);
    assert_unreadable::<Reply>(&with(reply_json(), "is_deleted_by_source", json!(null)), Field::Record);
    assert_unreadable::<Journalist>(&with(user_json(), "username", json!("")), Field::Username);
    assert_unreadable::<Journalist>(&with(user_json(), "first_name", json!(7)), Field::Name);
    assert_unreadable::<Journalist>(&with(user_json(), "last_name", json!(" ")), Field::Name);
}

#[test]
fn what_is_no_object_is_an_unreadable_record() {
    let array = json!([ID, "gentle harbour", true, "2026-01-02T03:04:05", 6, {"public": null, "fingerprint": null}]);
    for record in [json!(null), json!(7), json!("x"), json!([]), array] {
        let Listed::Unreadable(unreadable) = read::<Source>(&record) else { panic!("readable: {record}") };
        assert_eq!((unreadable.id, unreadable.field), (None, Field::Record), "{record}");
    }
}

#[test]
fn a_field_given_twice_makes_the_record_unreadable() {
    let twice = format!(r#"{{"uuid":"{ID}","size":1,"size":2}}"#);
    let Listed::Unreadable(unreadable) = listed::<Reply>(&twice) else { panic!("readable") };
    assert_eq!((unreadable.id.unwrap().as_str(), unreadable.field), (ID, Field::Record));
    let id_twice = format!(r#"{{"uuid":"{ID}","uuid":"{OTHER}"}}"#);
    let Listed::Unreadable(unreadable) = listed::<Reply>(&id_twice) else { panic!("readable") };
    assert_eq!((unreadable.id, unreadable.field), (None, Field::Record));
}

#[test]
fn more_seen_marks_than_the_protocol_has_room_for_are_unreadable() {
    let ids: Vec<_> = (0..=MAX_SEEN_BY).map(|n| format!("00000000-0000-0000-0000-{n:012}")).collect();
    assert_unreadable::<Reply>(&with(reply_json(), "seen_by", json!(ids)), Field::SeenBy);
    let repeated: Vec<_> = (0..=MAX_SEEN_BY).map(|_| OTHER).collect();
    assert_eq!(readable::<Reply>(&with(reply_json(), "seen_by", json!(repeated))).seen_by.as_slice().len(), 1);
}

#[test]
fn time_stamps_in_all_forms_are_the_same_moment() {
    for text in [
        "2026-01-02T03:04:05.678901Z",
        "2026-01-02T03:04:05.678901+00:00Z",
        "2026-01-02T03:04:05.678901+00:00",
        "2026-01-02T03:04:05.678901",
        "2026-01-02T05:04:05.678901+02:00",
    ] {
        assert_eq!(timestamp(text).unwrap().get(), 1_767_323_045_678_901, "{text}");
    }
    for text in
        ["2026-01-02T03:04:05", "2026-01-02T03:04:05Z", "2026-01-02T03:04:05+00:00", "2026-01-02T03:04:05+00:00Z"]
    {
        assert_eq!(timestamp(text).unwrap().get(), 1_767_323_045_000_000, "{text}");
    }
    for text in ["", "Z", "2026-01-02", "2026-13-02T03:04:05Z", "1969-12-31T23:59:59Z", "99999-01-01T00:00:00Z", "T"] {
        assert_eq!(timestamp(text), None, "{text}");
    }
}

fn login_json() -> Value {
    json!({
        "expiration": "2026-01-02T03:04:05.678901Z", "journalist_first_name": "Ada", "journalist_last_name": null,
        "journalist_uuid": ID, "token": "made.up.token",
    })
}

#[test]
fn a_login_tells_what_the_server_speaks() {
    let v1 = signed_in(login_json().to_string().as_bytes()).unwrap();
    assert_eq!((v1.token.expose(), v1.journalist.as_str(), v1.api_level), ("made.up.token", ID, ApiLevel::V1));
    assert_eq!((v1.first_name.unwrap().as_str(), v1.last_name), ("Ada", None));
    assert_eq!(v1.expires.get(), 1_767_323_045_678_901);
    let hints = json!({"items": 30, "sources": 5, "version": "0".repeat(64)});
    let v2 = signed_in(with(login_json(), "hints", hints).to_string().as_bytes()).unwrap();
    assert_eq!(v2.api_level, ApiLevel::V2);
}

#[test]
fn a_login_needs_token_journalist_and_expiry_but_no_name() {
    for field in ["token", "journalist_uuid", "expiration"] {
        assert_eq!(signed_in(without(login_json(), field).to_string().as_bytes()), None, "{field}");
        assert_eq!(signed_in(with(login_json(), field, json!("")).to_string().as_bytes()), None, "{field}");
    }
    assert_eq!(signed_in(with(login_json(), "token", json!("a\r\nX-Evil: 1")).to_string().as_bytes()), None);
    let odd = signed_in(with(login_json(), "journalist_first_name", json!("\u{7}")).to_string().as_bytes()).unwrap();
    assert_eq!(odd.first_name, None);
    for body in ["", "{", "[]", "null", "<html>"] {
        assert_eq!(signed_in(body.as_bytes()), None, "{body}");
    }
}

fn any_json() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<u64>().prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        any::<String>().prop_map(Value::from),
        Just(json!(OTHER)),
    ];
    leaf.prop_recursive(4, 32, 6, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..6).prop_map(Value::from),
            prop::collection::hash_map(any::<String>(), inner, 0..6)
                .prop_map(|map| Value::Object(map.into_iter().collect())),
        ]
    })
}

fn keeps_its_id<T: ServerRecord>(original: Value, changes: Vec<(usize, Value)>) -> Result<(), TestCaseError> {
    let fields: Vec<String> = original.as_object().unwrap().keys().filter(|key| *key != "uuid").cloned().collect();
    let mut record = original;
    for (at, value) in changes {
        record[&fields[at % fields.len()]] = value;
    }
    prop_assert_eq!(read::<T>(&record).id().map(|id| id.to_string()), Some(ID.to_owned()), "{}", record);
    Ok(())
}

/// What says which item an entry is must be as the whole record's reader has it, and nothing else matters.
#[test]
fn an_item_is_known_by_its_id_and_its_place() {
    let (id, source): (ReplyId, SourceId) = (ID.parse().unwrap(), OTHER.parse().unwrap());
    let item = |json: &str| listed_item::<ReplyId>(json).map(|item| (item.id, item.place));
    let known = Some((id, Some((source, OrderNumber::try_new(12).unwrap()))));
    assert_eq!(item(&reply_json().to_string()), known);
    let bare = json!({"uuid": ID, "source_url": format!("/api/v1/sources/{OTHER}"), "filename": "12-x"});
    assert_eq!(item(&bare.to_string()), known);

    for (field, value) in [
        ("filename", json!(null)),
        ("filename", json!("-12-x")),
        ("filename", json!(12)),
        ("source_url", json!(null)),
        ("source_url", json!(format!("/api/v1/sources/{OTHER}/"))),
    ] {
        assert_eq!(item(&with(reply_json(), field, value).to_string()), Some((id, None)), "{field}");
        assert_eq!(item(&without(reply_json(), field).to_string()), Some((id, None)), "{field}");
    }
    for entry in [json!(null), json!([ID]), json!({}), with(reply_json(), "uuid", json!("x"))] {
        assert_eq!(item(&entry.to_string()), None, "{entry}");
    }
    assert_eq!(item(&format!(r#"{{"uuid":"{ID}","uuid":"{OTHER}"}}"#)), None);
}

proptest! {
    #[test]
    fn whatever_the_fields_hold_the_id_is_kept(
        changes in prop::collection::vec((any::<usize>(), any_json()), 0..5), list in 0..4
    ) {
        match list {
            0 => keeps_its_id::<Source>(source_json(), changes)?,
            1 => keeps_its_id::<Submission>(submission_json(), changes)?,
            2 => keeps_its_id::<Reply>(reply_json(), changes)?,
            _ => keeps_its_id::<Journalist>(user_json(), changes)?,
        }
    }

    #[test]
    fn no_json_panics(record in any_json()) {
        read::<Source>(&record);
        read::<Submission>(&record);
        read::<Reply>(&record);
        read::<Journalist>(&record);
        listed_item::<SubmissionId>(&record.to_string());
        signed_in(record.to_string().as_bytes());
    }

    #[test]
    fn no_text_panics(text in any::<String>()) {
        listed::<Source>(&text);
        listed_item::<ReplyId>(&text);
        timestamp(&text);
    }
}

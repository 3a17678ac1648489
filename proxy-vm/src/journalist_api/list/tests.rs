use proptest::prelude::*;
use protocol::Journalist;
use protocol::frame::MAX_FRAME;
use serde_json::{Value, json};

use super::*;

const CAP: usize = 1024;

/// Splits `body`, fed in pieces of `size` bytes.
fn split(body: &[u8], size: usize) -> Result<Vec<Option<String>>, ListError> {
    let mut splitter = ListSplitter::new("things", CAP);
    let mut found = Vec::new();
    for piece in body.chunks(size.max(1)) {
        splitter.feed(piece, |json| found.push(json.map(str::to_owned)))?;
    }
    splitter.finish()?;
    Ok(found)
}

fn texts(records: &[&str]) -> Vec<Option<String>> {
    records.iter().map(|record| Some((*record).to_owned())).collect()
}

#[test]
fn finds_the_records_whatever_stands_around_them() {
    for (body, records) in [
        (r#"{"things":[]}"#, &[][..]),
        (r#" { "things" : [ ] } "#, &[]),
        (r#"{"things":[{"a":1},{"b":"}],{"}]}"#, &[r#"{"a":1}"#, r#"{"b":"}],{"}"#]),
        (r#"{"things":[1,"two",null,true,[3,[4]], -5.5e1 ]}"#, &["1", "\"two\"", "null", "true", "[3,[4]]", "-5.5e1"]),
        (r#"{"next":{"things":[9]},"things":["\"]","\\"],"n":0}"#, &[r#""\"]""#, r#""\\""#]),
        ("{\"\\u0074hings\":[7]}\r\n\t", &["7"]),
    ] {
        for size in 1..=body.len() {
            assert_eq!(split(body.as_bytes(), size), Ok(texts(records)), "{body} in pieces of {size}");
        }
    }
}

#[test]
fn refuses_what_is_no_list() {
    for (body, error) in [
        ("", ListError::Syntax),
        ("[]", ListError::Shape),
        ("<html>", ListError::Shape),
        ("{}", ListError::Shape),
        (r#"{"thing":[]}"#, ListError::Shape),
        (r#"{"things":null}"#, ListError::Shape),
        (r#"{"things":{}}"#, ListError::Shape),
        (r#"{"things":[],"things":[]}"#, ListError::Shape),
        (r#"{"things":[]}x"#, ListError::Syntax),
        (r#"{"things":[]}{"things":[]}"#, ListError::Syntax),
        (r#"{"things":[1,]}"#, ListError::Syntax),
        (r#"{"things":[,1]}"#, ListError::Syntax),
        (r#"{"things":[1 2]}"#, ListError::Syntax),
        (r#"{"things":[01]}"#, ListError::Syntax),
        (r#"{"things":[nul]}"#, ListError::Syntax),
        (r#"{"things":[{"a" 1}]}"#, ListError::Syntax),
        (r#"{"things":[{"a":1]]}"#, ListError::Syntax),
        (r#"{"things":["\x"]}"#, ListError::Syntax),
        (r#"{"things":[]},"#, ListError::Syntax),
        (r#"{"things":[],}"#, ListError::Syntax),
        (r#"{,"things":[]}"#, ListError::Syntax),
        (r#"{"things" []}"#, ListError::Syntax),
        (r#"{things:[]}"#, ListError::Syntax),
        (r#"{"a":tru,"things":[]}"#, ListError::Syntax),
    ] {
        for size in 1..=body.len().max(1) {
            assert_eq!(split(body.as_bytes(), size), Err(error), "{body} in pieces of {size}");
        }
    }
}

#[test]
fn cut_at_any_byte_it_is_incomplete() {
    let body = br#"{"a":[1],"things":[{"x":"\u00e4"},"y",3],"z":null}"#;
    for cut in 0..body.len() {
        assert!(split(&body[..cut], 7).is_err(), "cut at {cut}");
    }
    assert!(split(body, 7).is_ok());
}

#[test]
fn a_record_over_the_cap_or_no_text_is_passed_over_and_the_rest_is_read() {
    let huge = "x".repeat(CAP * 100);
    let body = format!(r#"{{"things":[1,{{"a":"{huge}"}},2]}}"#);
    assert_eq!(split(body.as_bytes(), 100), Ok(vec![Some("1".to_owned()), None, Some("2".to_owned())]));
    assert_eq!(split(b"{\"things\":[\"\xff\",2]}", 3), Ok(vec![None, Some("2".to_owned())]));
}

#[test]
fn memory_stays_flat() {
    let mut splitter = ListSplitter::new("things", CAP);
    splitter.feed(br#"{"things":["#, |_| {}).unwrap();
    for _ in 0..1000 {
        splitter.feed(&[b'['; 1000], |_| {}).unwrap();
    }
    assert!(splitter.value.capacity() <= 2 * CAP);
    let mut beside = ListSplitter::new("things", CAP);
    beside.feed(b"{\"other\":\"", |_| {}).unwrap();
    beside.feed(&[b'x'; 100 * CAP], |_| {}).unwrap();
    assert_eq!(beside.feed(b"\"", |_| {}), Err(ListError::TooLarge));
    assert!(beside.value.capacity() <= 2 * CAP);
}

fn user(n: usize) -> String {
    json!({"first_name": null, "last_name": null, "username": "u".repeat(200), "uuid": format!("00000000-0000-0000-0000-{n:012}")})
        .to_string()
}

fn gathered(batches: &mut Batches<Journalist>) -> Vec<Batch<Journalist>> {
    batches.close();
    std::iter::from_fn(|| batches.next()).collect()
}

#[test]
fn batches_keep_the_order_and_fit_a_frame() {
    let mut batches = Batches::new();
    for n in 0..1000 {
        batches.add(Some(&user(n)), |_| Ok(()));
    }
    let batches = gathered(&mut batches);
    assert!(batches.len() > 1);
    for batch in &batches {
        assert!(protocol::codec::encode(batch).unwrap().len() < MAX_FRAME / 2);
    }
    let ids: Vec<_> = batches.into_iter().flat_map(Batch::into_vec).map(|entry| entry.id().unwrap()).collect();
    assert_eq!(ids.len(), 1000);
    assert!(ids.is_sorted());
}

#[test]
fn batches_hold_no_more_entries_than_the_protocol_allows() {
    let mut batches = Batches::<Journalist>::new();
    for _ in 0..2 * MAX_BATCH + 1 {
        batches.add(None, |_| Ok(()));
    }
    assert_eq!((batches.records, batches.unreadable), (1025, 1025));
    let sizes: Vec<_> = gathered(&mut batches).iter().map(|batch| batch.as_slice().len()).collect();
    assert_eq!(sizes, [MAX_BATCH, MAX_BATCH, 1]);
}

#[test]
fn a_record_that_fails_the_check_is_unreadable_with_its_id() {
    let mut batches = Batches::<Journalist>::new();
    batches.add(Some(&user(1)), |_| Err(Field::Source));
    let entries: Vec<_> = gathered(&mut batches).into_iter().flat_map(Batch::into_vec).collect();
    let [Listed::Unreadable(unreadable)] = entries.as_slice() else { panic!("{entries:?}") };
    assert_eq!((unreadable.id.is_some(), unreadable.field), (true, Field::Source));
}

fn any_json() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<String>().prop_map(Value::from),
        "[\\[\\]{}\",\\\\ ]{0,6}".prop_map(Value::from),
    ];
    leaf.prop_recursive(3, 24, 4, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            prop::collection::hash_map("[a-z\"\\[{]{0,3}", inner, 0..4)
                .prop_map(|map| Value::Object(map.into_iter().collect())),
        ]
    })
}

proptest! {
    #[test]
    fn splits_as_serde_json_does(records in prop::collection::vec(any_json(), 0..6), beside in any_json(), size in 1_usize..64) {
        let body = json!({"a": beside, "things": records, "z": beside});
        let pretty = serde_json::to_string_pretty(&body).unwrap();
        prop_assume!(serde_json::to_string_pretty(&beside).unwrap().len() < CAP / 4);
        for text in [body.to_string(), pretty] {
            let found: Vec<Value> = split(text.as_bytes(), size)
                .unwrap()
                .into_iter()
                .map(|json| json.map_or(Value::Null, |json| serde_json::from_str(&json).unwrap()))
                .collect();
            let small = |value: &Value| serde_json::to_string_pretty(value).unwrap().len() < CAP / 4;
            if records.iter().all(small) {
                prop_assert_eq!(&found, &records);
            } else {
                prop_assert_eq!(found.len(), records.len());
            }
        }
    }

    #[test]
    fn takes_nothing_that_serde_json_refuses(
        records in prop::collection::vec(any_json(), 0..4),
        edits in prop::collection::vec((any::<prop::sample::Index>(), "[\\[\\]{}\",:0a\\\\ ]".prop_map(|text: String| text.into_bytes()[0])), 0..4),
        size in 1_usize..64,
    ) {
        let mut body = json!({"things": records}).to_string().into_bytes();
        for (at, byte) in edits {
            let at = at.index(body.len());
            body[at] = byte;
        }
        if let Ok(found) = split(&body, size)
            && found.iter().all(Option::is_some)
        {
            prop_assert!(serde_json::from_slice::<Value>(&body).is_ok(), "{}", String::from_utf8_lossy(&body));
        }
    }

    #[test]
    fn no_bytes_panic(body in prop::collection::vec(any::<u8>(), 0..200), size in 1_usize..64) {
        let _any_outcome = split(&body, size);
    }
}

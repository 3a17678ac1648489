//! What goes wrong with downloads on purpose.

use super::*;

impl Room {
    fn spoil(&self, act: FaultAct) {
        self.control().apply(Command::ClearFaults).unwrap();
        self.control().add_fault(Fault::new(Matching::path("/api/v1/sources/*/*/*/download"), act)).unwrap();
    }

    /// What arrives of the file before the connection goes, from a byte on.
    async fn what_arrives(&self, from: usize) -> Vec<u8> {
        let request = self.get(&self.submission_path(&self.file)).header("Range", format!("bytes={from}-"));
        let mut answer = request.send().await.unwrap();
        let mut arrived = Vec::new();
        while let Ok(Some(bytes)) = answer.chunk().await {
            arrived.extend_from_slice(&bytes);
        }
        arrived
    }
}

#[tokio::test]
async fn a_download_that_breaks_off_is_resumed_without_fetching_anything_twice() {
    bounded(async {
        let room = Room::open().await;
        let etag = room.control().etag(&room.file).await.unwrap();
        let mut all = Vec::new();
        for bytes in [0, 1, 1_700, 3_000] {
            room.spoil(FaultAct::DropAfter { bytes });
            let arrived = room.what_arrives(all.len()).await;
            assert_eq!(arrived.len() as u64, bytes);
            all.extend(arrived);
        }
        room.control().apply(Command::ClearFaults).unwrap();
        all.extend(room.what_arrives(all.len()).await);
        assert_eq!(etag_of(&all), etag);
        let requests = room.control().requests();
        let ranges: Vec<_> = requests.iter().filter_map(LoggedRequest::range).collect();
        assert_eq!(ranges, ["bytes=0-", "bytes=0-", "bytes=1-", "bytes=1701-", "bytes=4701-"]);
        let sent: u64 = requests.iter().filter(|r| r.path.ends_with("/download")).map(|r| r.body_bytes).sum();
        assert_eq!(sent, FILE_SIZE);
    })
    .await;
}

#[tokio::test]
async fn a_download_can_end_early_and_say_so() {
    bounded(async {
        let room = Room::open().await;
        let (_, whole) = status_and_body(room.get_message()).await;
        room.spoil(FaultAct::Truncate { bytes: 100 });
        let answer = room.get_message().send().await.unwrap();
        assert_eq!(
            (answer.content_length(), &answer.headers()["etag"]),
            (Some(100), &etag_of(&whole).parse().unwrap())
        );
        assert_eq!(answer.bytes().await.unwrap(), whole[..100]);
        room.spoil(FaultAct::Truncate { bytes: 10_000 });
        assert_eq!(status_and_body(room.get_message()).await, (200, whole));
    })
    .await;
}

#[tokio::test]
async fn a_lost_download_was_still_one() {
    bounded(async {
        let room = Room::open().await;
        room.spoil(FaultAct::LoseAnswer);
        assert!(room.get_message().send().await.is_err());
        room.spoil(FaultAct::Drop);
        assert!(room.get(&room.submission_path(&room.file)).send().await.is_err());
        room.control().apply(Command::ClearFaults).unwrap();
        assert_eq!(room.record(&room.message).await["is_read"], true);
        assert_eq!(room.record(&room.file).await["is_read"], false);
        room.spoil(FaultAct::json(503, &json!({"error": "x"})));
        assert_eq!(status_and_body(room.get_message()).await.0, 503);
    })
    .await;
}

#[tokio::test]
async fn a_download_can_hang_in_the_middle_until_the_client_goes() {
    bounded(async {
        let room = Room::open().await;
        let size = 3_000_000;
        let file = new_item(room.control(), Command::NewFile { source: room.source.clone(), size });
        room.spoil(FaultAct::HangAfter { bytes: 2_000_000 });
        let mut answer = room.get(&room.submission_path(&file)).send().await.unwrap();
        assert_eq!(answer.content_length(), Some(size));
        let mut arrived = 0;
        while arrived < 2_000_000 {
            arrived += answer.chunk().await.unwrap().unwrap().len();
        }
        let logged = room.control().requests().pop().unwrap();
        assert_eq!((arrived, logged.body_bytes, logged.ended), (2_000_000, 2_000_000, None));
        drop(answer);
        room.control().wait_for_log(|log| log.in_flight() == 0).await;
    })
    .await;
}

#[tokio::test]
async fn a_file_replaced_while_it_is_fetched_is_noticed_at_the_next_request_only() {
    bounded(async {
        let room = Room::open().await;
        let before = room.control().etag(&room.file).await.unwrap();
        let rule = Fault::new(Matching::path("/api/v1/**"), FaultAct::HoldAnswer);
        let id = room.control().add_fault(rule).unwrap();
        let path = room.submission_path(&room.file);
        let fetch = status_and_body(room.get(&path));
        let replace = async {
            room.control().wait_for_log(|log| log.held() == 1).await;
            room.control().apply(Command::ReplaceFile { item: room.file.clone() }).unwrap();
            room.control().apply(Command::RemoveFault { id }).unwrap();
        };
        let ((_, first), ()) = tokio::join!(fetch, replace);
        assert_eq!(etag_of(&first), before);
        let answer = room.get(&path).header("Range", "bytes=2000-").send().await.unwrap();
        assert_eq!(answer.headers()["content-range"], format!("bytes 2000-4999/{FILE_SIZE}"));
        assert_ne!(answer.headers()["etag"], before);
        assert_eq!(answer.headers()["etag"], room.control().etag(&room.file).await.unwrap());
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_download_can_drip() {
    let room = Room::open().await;
    let (_, whole) = status_and_body(room.get_message()).await;
    room.spoil(FaultAct::Drip { bytes: 100, every_ms: 10_000 });
    let before = tokio::time::Instant::now();
    let mut answer = room.get_message().send().await.unwrap();
    assert_eq!(answer.content_length(), Some(MESSAGE_SIZE));
    let first = answer.chunk().await.unwrap().unwrap();
    assert_eq!((first.len(), before.elapsed() < Duration::from_secs(10)), (100, true));
    let mut all = first.to_vec();
    while let Some(bytes) = answer.chunk().await.unwrap() {
        all.extend_from_slice(&bytes);
    }
    assert_eq!(all, whole);
    assert!(before.elapsed() >= Duration::from_secs(60), "six pauses: {:?}", before.elapsed());
}

#[tokio::test]
async fn a_dripping_download_ends_with_the_server() {
    bounded(async {
        let room = Room::open().await;
        room.spoil(FaultAct::Drip { bytes: 1, every_ms: 3_600_000 });
        let mut answer = room.get_message().send().await.unwrap();
        assert_eq!(answer.chunk().await.unwrap().unwrap().len(), 1);
        let Room { site, .. } = room;
        site.server.stop().await;
        answer.chunk().await.unwrap_err();
    })
    .await;
}

#[tokio::test]
async fn one_byte_can_be_wrong_under_the_right_etag() {
    bounded(async {
        let room = Room::open().await;
        let size = 1_500_000;
        let file = new_item(room.control(), Command::NewFile { source: room.source.clone(), size });
        let path = room.submission_path(&file);
        let (_, whole) = status_and_body(room.get(&path)).await;
        for at in [0, 700_000, 1_499_999] {
            room.spoil(FaultAct::FlipByte { at });
            let answer = room.get(&path).send().await.unwrap();
            assert_eq!(answer.headers()["etag"], etag_of(&whole));
            let body = answer.bytes().await.unwrap();
            let wrong: Vec<_> = (0..whole.len()).filter(|at| body[*at] != whole[*at]).collect();
            assert_eq!(wrong, [usize::try_from(at).unwrap()]);
        }
        room.spoil(FaultAct::FlipByte { at: size });
        assert_eq!(status_and_body(room.get(&path)).await.1, whole);
    })
    .await;
}

#[tokio::test]
async fn headers_can_be_wrong_or_missing() {
    bounded(async {
        let room = Room::open().await;
        let etag = room.control().etag(&room.message).await.unwrap();
        let (quoted, upper) = (format!("\"{etag}\""), etag.to_uppercase());
        for value in [None, Some(quoted.as_str()), Some(upper.as_str()), Some("sha256:"), Some("étag")] {
            room.spoil(FaultAct::edit_headers(&[("ETag", value), ("content-range", Some("bytes 1-2/3"))]));
            let answer = room.get_message().send().await.unwrap();
            let sent = answer.headers().get("etag").map(|value| value.as_bytes().to_vec());
            assert_eq!(sent.as_deref(), value.map(str::as_bytes));
            assert_eq!(answer.headers()["content-range"], "bytes 1-2/3");
            assert_eq!(answer.bytes().await.unwrap().len() as u64, MESSAGE_SIZE);
        }
        let written = r#"{"kind": "edit_headers", "headers": {"etag": null, "x-y": "z"}}"#;
        let act: FaultAct = serde_json::from_str(written).unwrap();
        assert_eq!(act, FaultAct::edit_headers(&[("etag", None), ("x-y", Some("z"))]));
        for (name, value) in [("content-length", Some("1")), ("", None), ("etag", Some("\n"))] {
            let act = FaultAct::edit_headers(&[(name, value)]);
            room.control().add_fault(Fault::new(Matching::path("/a"), act)).unwrap_err();
        }
        for act in [FaultAct::Drip { bytes: 0, every_ms: 1 }, FaultAct::Drip { bytes: 1, every_ms: u64::MAX }] {
            room.control().add_fault(Fault::new(Matching::path("/a"), act)).unwrap_err();
        }
    })
    .await;
}

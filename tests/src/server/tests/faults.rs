//! What goes wrong on purpose.

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::*;

const PATH: &str = "/api/v1/sources";

/// A server with one rule for the list of sources, and a token.
async fn site(act: FaultAct) -> (Site, String) {
    let site = Site::start(ServerOptions { seen_by_order: SeenByOrder::Stable, ..small() }).await;
    let token = site.sign_in(MARLOW).await;
    site.control().add_fault(Fault::new(Matching::method("GET", PATH), act)).unwrap();
    (site, token)
}

/// The list as it would be.
async fn sound(site: &Site, token: &str) -> String {
    site.control().apply(Command::ClearFaults).unwrap();
    site.signed(Method::GET, PATH, token).send().await.unwrap().text().await.unwrap()
}

/// Asks for the list by hand and returns all that comes until the server closes.
async fn raw(site: &Site, token: &str) -> String {
    let request = format!("GET {PATH} HTTP/1.1\r\nHost: x\r\nAuthorization: Token {token}\r\n\r\n");
    connections::raw(site, &request).await
}

#[tokio::test]
async fn rules_act_as_often_as_they_say_and_on_what_they_say() {
    bounded(async {
        let site = Site::start(small()).await;
        let token = site.sign_in(MARLOW).await;
        let act = FaultAct::json(503, &json!({"error": "x"}));
        site.control().add_fault(Fault::new(Matching::path(PATH), act).times(2)).unwrap();
        let mut statuses = Vec::new();
        for path in [PATH, "/api/v1/users", PATH, PATH] {
            statuses.push(site.signed(Method::GET, path, &token).send().await.unwrap().status().as_u16());
        }
        assert_eq!(statuses, [503, 200, 503, 200]);
        let status = site.control().faults().pop().unwrap();
        assert_eq!((status.acted, status.fault.times), (2, Some(0)));
        let faults: Vec<_> = site.control().requests().iter().map(|request| request.fault).collect();
        assert_eq!(faults, [None, Some(1), None, Some(1), None]);
    })
    .await;
}

#[tokio::test]
async fn any_answer_can_be_given() {
    bounded(async {
        let (site, token) = site(FaultAct::html(502, "<html>gone</html>")).await;
        let answer = site.signed(Method::GET, PATH, &token).send().await.unwrap();
        assert_eq!(answer.status(), 502);
        assert!(answer.headers()["content-type"].to_str().unwrap().starts_with("text/html"));
        assert_eq!(answer.text().await.unwrap(), "<html>gone</html>");

        site.control().apply(Command::ClearFaults).unwrap();
        site.control().add_fault(Fault::new(Matching::path(PATH), FaultAct::not_json())).unwrap();
        let answer = site.signed(Method::GET, PATH, &token).send().await.unwrap();
        assert_eq!(
            (answer.status().as_u16(), &answer.headers()["content-type"]),
            (200, &"application/json".parse().unwrap())
        );
        assert!(serde_json::from_str::<Value>(&answer.text().await.unwrap()).is_err());
    })
    .await;
}

#[tokio::test]
async fn all_redirections_lead_where_they_say() {
    bounded(async {
        for status in [301, 302, 303, 307, 308] {
            let location = String::from("http://127.0.0.1:9/elsewhere");
            let (site, token) = site(FaultAct::Redirect { status, location }).await;
            let answer = site.signed(Method::GET, PATH, &token).send().await.unwrap();
            assert_eq!(answer.status(), status);
            assert_eq!(answer.headers()["location"], "http://127.0.0.1:9/elsewhere");
        }
    })
    .await;
}

#[tokio::test]
async fn a_dropped_connection_has_no_answer() {
    bounded(async {
        let (site, token) = site(FaultAct::Drop).await;
        assert_eq!(raw(&site, &token).await, "");
        assert!(site.signed(Method::GET, PATH, &token).send().await.is_err());
        assert!(site.control().requests().iter().skip(1).all(|request| request.status.is_none()));
        site.read("/api/v1/users", &token).await;
    })
    .await;
}

#[tokio::test]
async fn a_lost_answer_was_still_given() {
    bounded(async {
        for act in [FaultAct::LoseAnswer, FaultAct::Drop] {
            let site = Site::start(small()).await;
            let token = site.sign_in(MARLOW).await;
            let did_it = act == FaultAct::LoseAnswer;
            site.control().add_fault(Fault::new(Matching::path("/api/v1/logout"), act)).unwrap();
            assert!(site.signed(Method::POST, "/api/v1/logout", &token).send().await.is_err());
            let status = site.signed(Method::GET, "/api/v1/user", &token).send().await.unwrap().status();
            assert_eq!(status == 403, did_it, "{status}");
        }
    })
    .await;
}

#[tokio::test]
async fn an_error_can_come_after_the_effect() {
    bounded(async {
        let site = Site::start(small()).await;
        let token = site.sign_in(MARLOW).await;
        let logout = || Matching::path("/api/v1/logout");
        assert!(site.control().add_fault(Fault::new(logout(), FaultAct::FailAfter { status: 42 })).is_err());
        site.control().add_fault(Fault::new(logout(), FaultAct::FailAfter { status: 504 })).unwrap();
        let answer = site.signed(Method::POST, "/api/v1/logout", &token).send().await.unwrap();
        assert_eq!(answer.status(), 504);
        assert_eq!(site.signed(Method::GET, "/api/v1/user", &token).send().await.unwrap().status(), 403);
    })
    .await;
}

#[tokio::test]
async fn a_body_can_end_before_its_promised_end() {
    bounded(async {
        for bytes in [0, 1, 5_000, u64::MAX] {
            let (site, token) = site(FaultAct::DropAfter { bytes }).await;
            let answer = raw(&site, &token).await;
            let (head, body) = answer.split_once("\r\n\r\n").unwrap();
            let sound = sound(&site, &token).await;
            let length = usize::try_from(bytes).unwrap().min(sound.len() - 1);
            assert!(head.to_lowercase().contains(&format!("\r\ncontent-length: {}\r\n", sound.len())), "{head}");
            assert_eq!(Some(body), sound.get(..length));
        }
    })
    .await;
}

#[tokio::test]
async fn a_large_body_is_cut_where_it_says() {
    bounded(async {
        let site = Site::start(options(Recipe::new(500, 0).generate().unwrap())).await;
        let token = site.sign_in(MARLOW).await;
        let bytes = 1_234_567;
        site.control().add_fault(Fault::new(Matching::path(PATH), FaultAct::DropAfter { bytes })).unwrap();
        let answer = raw(&site, &token).await;
        assert_eq!(answer.split_once("\r\n\r\n").unwrap().1.len(), 1_234_567);
    })
    .await;
}

#[tokio::test]
async fn a_list_can_be_cut_cleanly() {
    bounded(async {
        let (site, token) = site(FaultAct::Truncate { bytes: 700 }).await;
        let answer = site.signed(Method::GET, PATH, &token).send().await.unwrap();
        assert_eq!((answer.status().as_u16(), answer.content_length()), (200, Some(700)));
        let body = answer.text().await.unwrap();
        assert_eq!(Some(body.as_str()), sound(&site, &token).await.get(..700));
    })
    .await;
}

#[tokio::test]
async fn one_record_can_be_bad() {
    bounded(async {
        let edits = vec![
            Edit::set("/journalist_designation", ""),
            Edit::set("/interaction_count", -1),
            Edit::set("/number_of_messages", 1.5),
            Edit::set("/number_of_documents", 9_223_372_036_854_775_808_u64),
            Edit::set("/uuid", "not a uuid"),
            Edit::remove("/key/public"),
            Edit::set("/surprise", json!({"é": ["../../x", "\u{202e}"]})),
        ];
        let (site, token) = site(FaultAct::BadRecord { which: Which::Index(1), edits }).await;
        let bad = site.read(PATH, &token).await;
        let mut expected: Value = serde_json::from_str(&sound(&site, &token).await).unwrap();
        let record = expected["sources"][1].as_object_mut().unwrap();
        record["journalist_designation"] = json!("");
        record["interaction_count"] = json!(-1);
        record["number_of_messages"] = json!(1.5);
        record["number_of_documents"] = json!(9_223_372_036_854_775_808_u64);
        record["uuid"] = json!("not a uuid");
        record["key"].as_object_mut().unwrap().remove("public").unwrap();
        record.insert("surprise".to_owned(), json!({"é": ["../../x", "\u{202e}"]}));
        assert_eq!(bad, expected);
    })
    .await;
}

#[tokio::test]
async fn a_bad_record_is_found_by_its_id() {
    bounded(async {
        let site = Site::start(small()).await;
        let token = site.sign_in(MARLOW).await;
        let id = site.control().with_world(|world| world.submissions().nth(2).unwrap().id.clone());
        let edits = vec![Edit::set("/is_file", true), Edit::set("/is_message", true), Edit::set("/filename", "..")];
        let act = FaultAct::BadRecord { which: Which::Uuid(id.clone()), edits };
        site.control().add_fault(Fault::new(Matching::path("/api/v1/**"), act)).unwrap();
        let list = site.read("/api/v1/submissions", &token).await;
        let bad: Vec<_> = list["submissions"]
            .as_array()
            .unwrap()
            .iter()
            .filter(|item| item["is_file"] == item["is_message"] && item["filename"] == "..")
            .collect();
        assert_eq!(bad.len(), 1);
        assert_eq!(bad[0]["uuid"], id.as_str());
        let alone = site.read(&format!("{PATH}/{}/submissions/{id}", first_source(&site)), &token).await;
        assert_eq!(&alone, bad[0]);
    })
    .await;
}

#[tokio::test]
async fn a_body_can_be_absurdly_large() {
    bounded(async {
        for announced in [false, true] {
            let bytes = 3_000_000;
            let (site, token) = site(FaultAct::Oversize { bytes, announced }).await;
            let answer = site.signed(Method::GET, PATH, &token).send().await.unwrap();
            assert_eq!(answer.content_length(), announced.then_some(bytes));
            let body = answer.text().await.unwrap();
            assert_eq!(body.len(), 3_000_000);
            assert_eq!(serde_json::from_str::<Value>(&body).unwrap(), json!({"sources": []}));
        }
        // Nobody reads this one to its end, and nothing stays of it.
        let (site, token) = site(FaultAct::Oversize { bytes: LARGEST_BODY, announced: true }).await;
        let answer = site.signed(Method::GET, PATH, &token).send().await.unwrap();
        assert_eq!(answer.content_length(), Some(LARGEST_BODY));
        drop(answer);
        site.control().wait_for_log(|log| log.in_flight() == 0).await;
    })
    .await;
}

#[tokio::test]
async fn a_request_can_hang_until_the_client_goes() {
    bounded(async {
        for act in [FaultAct::Hang, FaultAct::HangAnswer, FaultAct::HangAfter { bytes: 10 }] {
            let (site, token) = site(act.clone()).await;
            let mut stream = TcpStream::connect(site.server.address()).await.unwrap();
            let request = format!("GET {PATH} HTTP/1.1\r\nHost: x\r\nAuthorization: Token {token}\r\n\r\n");
            stream.write_all(request.as_bytes()).await.unwrap();
            site.control().wait_for_log(|log| log.in_flight() == 1).await;
            if act == (FaultAct::HangAfter { bytes: 10 }) {
                let mut answer = String::new();
                while !answer.ends_with("{\"sources\"") {
                    let mut byte = [0];
                    stream.read_exact(&mut byte).await.unwrap();
                    answer.push(char::from(byte[0]));
                }
            }
            site.read("/api/v1/users", &token).await;
            let hanging = |log: &RequestLog| log.requests().filter(|r| r.path == PATH && r.ended.is_none()).count();
            assert_eq!(site.control().with_log(hanging), 1);
            drop(stream);
            site.control().wait_for_log(|log| hanging(log) == 0).await;
        }
    })
    .await;
}

#[tokio::test]
async fn a_login_can_hang_until_the_client_goes() {
    bounded(async {
        let site = Site::start(small()).await;
        site.control().add_fault(Fault::new(Matching::path("/api/v1/token"), FaultAct::Hang)).unwrap();
        let gone = tokio::select! {
            answer = site.login(MARLOW).send() => panic!("answered: {answer:?}"),
            () = site.control().wait_for_log(|log| log.in_flight() == 1) => site.control().clone(),
        };
        gone.wait_for_log(|log| log.in_flight() == 0).await;
    })
    .await;
}

#[tokio::test]
async fn requests_are_seen_to_run_at_the_same_time() {
    bounded(async {
        let site = Site::start(small()).await;
        let token = site.sign_in(MARLOW).await;
        let lists = ["/api/v1/sources", "/api/v1/submissions", "/api/v1/replies", "/api/v1/users"];
        let slow = Fault::new(Matching::path("/api/v1/*"), FaultAct::Hang);
        site.control().add_fault(slow).unwrap();
        let all = async {
            let get = |path| site.signed(Method::GET, path, &token).send();
            tokio::join!(get(lists[0]), get(lists[1]), get(lists[2]), get(lists[3]))
        };
        tokio::select! {
            _ = all => panic!("they hang"),
            () = site.control().wait_for_log(|log| log.in_flight() == 4) => {}
        }
        site.control().wait_for_log(|log| log.in_flight() == 0).await;
        site.control().apply(Command::ClearFaults).unwrap();
        for path in lists {
            site.read(path, &token).await;
        }
        site.control().with_log(|log| {
            assert_eq!(log.max_in_flight(), 4);
            assert_eq!(log.max_in_flight_of(|request| request.path == lists[0]), 1);
            assert_eq!(log.max_in_flight_of(|request| request.method == "GET"), 4);
        });
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_delayed_answer_comes_after_its_delay() {
    let (site, token) = site(FaultAct::Pass).await;
    site.control().apply(Command::ClearFaults).unwrap();
    let slow = Fault::new(Matching::path(PATH), FaultAct::Pass).after_ms(60_000);
    site.control().add_fault(slow).unwrap();
    let before = tokio::time::Instant::now();
    let answer = site.read(PATH, &token).await;
    assert!(before.elapsed() >= Duration::from_secs(60));
    assert_eq!(answer["sources"].as_array().unwrap().len(), 3);
}

#[tokio::test]
async fn faults_act_on_what_goes_over_the_wire() {
    bounded(async {
        let site = Site::start(ServerOptions { gzip: true, ..small() }).await;
        let token = site.sign_in(MARLOW).await;
        let edits = vec![Edit::set("", json!("bad"))];
        let act = FaultAct::BadRecord { which: Which::Index(0), edits };
        site.control().add_fault(Fault::new(Matching::path(PATH), act)).unwrap();
        let request = site.signed(Method::GET, PATH, &token).header("Accept-Encoding", "gzip");
        let answer = request.send().await.unwrap();
        assert_eq!(answer.headers()["content-encoding"], "gzip");
        let packed = answer.bytes().await.unwrap();
        let list: Value = serde_json::from_reader(flate2::read::GzDecoder::new(packed.as_ref())).unwrap();
        assert_eq!(list["sources"][0], "bad");
    })
    .await;
}

//! Signing in and out.

use super::*;

const FAILED: &str = "{\"error\":\"Forbidden\",\"message\":\"Token authentication failed.\"}\n";
const MALFORMED: &str = "{\"error\":\"Bad Request\",\"message\":\"malformed request\"}\n";

fn token_route(site: &Site, body: &str) -> RequestBuilder {
    site.request(Method::POST, "/api/v1/token").header("Content-Type", "application/json").body(body.to_owned())
}

#[tokio::test]
async fn a_login_is_answered_in_each_flavours_shape() {
    bounded(async {
        let cases = [
            (ApiFlavour::Older, "2026-11-02T10:30:00+00:00Z"),
            (ApiFlavour::Classic, "2026-11-02T10:30:00.000000Z"),
            (ApiFlavour::Newer, "2026-11-02T10:30:00+00:00"),
        ];
        for (api, expiration) in cases {
            let site = Site::start(ServerOptions { api, ..small() }).await;
            let mut answer = json_of(site.login(MARLOW).send().await.unwrap()).await;
            let token = answer.as_object_mut().unwrap().remove("token").unwrap();
            assert!(token.as_str().unwrap().len() > 90);
            let journalist = site.control().with_world(|world| world.journalists()[0].id.clone());
            assert_eq!(
                answer,
                json!({
                    "expiration": expiration,
                    "journalist_first_name": "Zoë",
                    "journalist_last_name": "Mårlöw-Šimková 夏",
                    "journalist_uuid": journalist.as_str(),
                }),
                "{api:?}"
            );
            let answer = json_of(site.login(TERNBERG).send().await.unwrap()).await;
            assert_eq!(answer["journalist_first_name"], Value::Null);
            assert_eq!(answer["journalist_last_name"], Value::Null);
        }
    })
    .await;
}

#[tokio::test]
async fn hints_go_to_those_who_can_use_them() {
    bounded(async {
        let cases = [
            (ApiFlavour::Newer, Some("securedrop=4"), true),
            (ApiFlavour::Newer, Some("securedrop=99"), true),
            (ApiFlavour::Newer, Some("something"), true),
            (ApiFlavour::Newer, Some("securedrop=3"), false),
            (ApiFlavour::Newer, None, false),
            (ApiFlavour::Classic, Some("securedrop=4"), false),
        ];
        for (api, prefer, hinted) in cases {
            let site = Site::start(ServerOptions { api, ..small() }).await;
            let mut login = site.login(MARLOW);
            if let Some(prefer) = prefer {
                login = login.header("Prefer", prefer);
            }
            let answer = json_of(login.send().await.unwrap()).await;
            assert_eq!(answer.get("hints").is_some(), hinted, "{api:?} {prefer:?}");
            if let Some(hints) = answer.get("hints") {
                assert_eq!(hints["sources"], 4);
                assert_eq!(hints["items"], 16);
                assert_eq!(hints["version"].as_str().unwrap().len(), 64);
            }
        }
    })
    .await;
}

#[tokio::test]
async fn every_failure_looks_the_same() {
    bounded(async {
        let site = Site::start(small()).await;
        let code = MARLOW.code_at(NOW);
        let attempts = [
            ("stranger", MARLOW.passphrase, code.as_str()),
            ("deleted", MARLOW.passphrase, &code),
            ("", "", ""),
            (MARLOW.username, MARLOW.passphrase, "000000"),
            (MARLOW.username, TERNBERG.passphrase, &code),
            // The right one, but the last attempt burnt the code.
            (MARLOW.username, MARLOW.passphrase, &code),
        ];
        for (username, passphrase, one_time_code) in attempts {
            let body = json!({"username": username, "passphrase": passphrase, "one_time_code": one_time_code});
            refused(token_route(&site, &body.to_string()), 403, FAILED).await;
        }
        refused(token_route(&site, r#"{"username": 1, "passphrase": "x", "one_time_code": "1"}"#), 403, FAILED).await;
        site.control().apply(Command::AdvanceClock { seconds: 30 }).unwrap();
        site.sign_in(MARLOW).await;
    })
    .await;
}

#[tokio::test]
async fn a_login_that_cannot_be_read_is_a_bad_request() {
    bounded(async {
        let site = Site::start(small()).await;
        refused(token_route(&site, ""), 400, MALFORMED).await;
        refused(token_route(&site, "username=marlow"), 400, MALFORMED).await;
        let cases = [
            ("{}", "username"),
            (r#"{"username": "marlow"}"#, "passphrase"),
            (r#"{"username": "marlow", "passphrase": "x"}"#, "one_time_code"),
            (r#"{"username": "marlow", "passphrase": "x", "one_time_code": null}"#, "one_time_code"),
        ];
        for (body, field) in cases {
            let message = format!("{{\"error\":\"Bad Request\",\"message\":\"{field} field is missing\"}}\n");
            refused(token_route(&site, body), 400, &message).await;
        }
        // None of this was a login.
        site.sign_in(MARLOW).await;
    })
    .await;
}

#[tokio::test]
async fn logging_out_ends_the_session_and_no_other() {
    bounded(async {
        let site = Site::start(small()).await;
        let token = site.sign_in(MARLOW).await;
        let other = site.sign_in(TERNBERG).await;
        refused(site.signed(Method::POST, "/api/v1/logout", &token).body("not json"), 400, MALFORMED).await;
        let answer = site.signed(Method::POST, "/api/v1/logout", &token).send().await.unwrap();
        assert_eq!(answer.status(), 200);
        assert!(answer.headers()["set-cookie"].to_str().unwrap().starts_with("js="));
        assert_eq!(answer.headers()["vary"], "Cookie");
        assert_eq!(answer.text().await.unwrap(), "{\"message\":\"Your token has been revoked.\"}\n");
        refused(site.signed(Method::GET, "/api/v1/user", &token), 403, NOT_SIGNED_IN).await;
        refused(site.signed(Method::POST, "/api/v1/logout", &token), 403, NOT_SIGNED_IN).await;
        site.read("/api/v1/user", &other).await;
    })
    .await;
}

#[tokio::test]
async fn sessions_end_with_time_or_at_once() {
    bounded(async {
        let site = Site::start(ServerOptions { session_lifetime: Duration::from_secs(3_600), ..small() }).await;
        let token = site.sign_in(MARLOW).await;
        site.control().apply(Command::AdvanceClock { seconds: 3_600 }).unwrap();
        refused(site.signed(Method::GET, "/api/v1/user", &token), 403, NOT_SIGNED_IN).await;
        let token = site.sign_in(MARLOW).await;
        let ended = site.control().apply(Command::EndSessions { journalist: Some("marlow".to_owned()) }).unwrap();
        assert_eq!(ended, Outcome::Sessions { ended: 1 });
        refused(site.signed(Method::GET, "/api/v1/user", &token), 403, NOT_SIGNED_IN).await;
    })
    .await;
}

#[tokio::test]
async fn a_session_is_prolonged_by_use_and_nobody_says_so() {
    bounded(async {
        let site = Site::start(small()).await;
        let login = json_of(site.login(MARLOW).send().await.unwrap()).await;
        assert_eq!(login["expiration"], "2026-11-02T10:30:00.000000Z");
        let token = login["token"].as_str().unwrap();
        let pass = |seconds| site.control().apply(Command::AdvanceClock { seconds }).unwrap();
        // With half an hour left it is not; with less it is, five times.
        pass(5_400);
        site.read("/api/v1/user", token).await;
        pass(1_799);
        for _ in 0..5 {
            site.read("/api/v1/user", token).await;
            pass(7_200);
        }
        site.read("/api/v1/user", token).await;
        pass(1);
        refused(site.signed(Method::GET, "/api/v1/user", token), 403, NOT_SIGNED_IN).await;
    })
    .await;
}

#[tokio::test]
async fn a_session_that_nobody_uses_ends_as_announced() {
    bounded(async {
        let site = Site::start(small()).await;
        let token = site.sign_in(MARLOW).await;
        site.control().apply(Command::AdvanceClock { seconds: 5_400 }).unwrap();
        site.read("/api/v1/user", &token).await;
        site.control().apply(Command::AdvanceClock { seconds: 1_800 }).unwrap();
        refused(site.signed(Method::GET, "/api/v1/user", &token), 403, NOT_SIGNED_IN).await;
        // Nothing of it comes back with the next one.
        let next = site.sign_in(MARLOW).await;
        assert_ne!(next, token);
        refused(site.signed(Method::GET, "/api/v1/user", &token), 403, NOT_SIGNED_IN).await;
        site.read("/api/v1/user", &next).await;
    })
    .await;
}

#[tokio::test]
async fn successes_count_as_attempts() {
    bounded(async {
        let site = Site::start(ServerOptions { throttle_logins: true, ..small() }).await;
        for attempt in 0..6 {
            // Once a code is spent its neighbours are good for a login as well.
            let at = NOW.checked_add(jiff::SignedDuration::from_secs([0, 30, -30][attempt % 3])).unwrap();
            let body = json!({
                "username": MARLOW.username,
                "passphrase": MARLOW.passphrase,
                "one_time_code": MARLOW.code_at(at),
            });
            let answer = token_route(&site, &body.to_string()).send().await.unwrap();
            assert_eq!(answer.status() == 200, attempt < 5, "attempt {attempt}");
        }
        site.sign_in(TERNBERG).await;
    })
    .await;
}

#[tokio::test]
async fn throttling_is_an_option() {
    bounded(async {
        for throttle_logins in [false, true] {
            let site = Site::start(ServerOptions { throttle_logins, ..small() }).await;
            let wrong = json!({"username": "marlow", "passphrase": "x", "one_time_code": "000000"}).to_string();
            for _ in 0..5 {
                refused(token_route(&site, &wrong), 403, FAILED).await;
            }
            let status = site.login(MARLOW).send().await.unwrap().status();
            assert_eq!(status == 403, throttle_logins, "{status}");
            site.control().apply(Command::AdvanceClock { seconds: 60 }).unwrap();
            site.sign_in(MARLOW).await;
        }
    })
    .await;
}

#[tokio::test]
async fn servers_of_one_process_share_nothing() {
    bounded(async {
        let (one, other) = (Site::start(small()).await, Site::start(small()).await);
        let token = one.sign_in(MARLOW).await;
        refused(other.signed(Method::GET, "/api/v1/user", &token), 403, NOT_SIGNED_IN).await;
        other.sign_in(MARLOW).await;
    })
    .await;
}

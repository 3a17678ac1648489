//! Who may ask for what, with which method.

use super::*;

const WRONG_METHOD: &str =
    "{\"error\":\"Method Not Allowed\",\"message\":\"The method is not allowed for the requested URL.\"}\n";

#[tokio::test]
async fn without_a_session_everything_is_forbidden() {
    bounded(async {
        let site = Site::start(small()).await;
        let token = site.sign_in(MARLOW).await;
        let source = first_source(&site);
        for path in ["/api/v1/sources", "/api/v1/nothing", "/api/v1/sources/", "/api/v1/token", "/nothing", "/"] {
            refused(site.get(path), 403, NOT_SIGNED_IN).await;
        }
        refused(site.get(&format!("/api/v1/sources/{source}")), 403, NOT_SIGNED_IN).await;
        refused(site.request(Method::POST, "/api/v1/sources"), 403, NOT_SIGNED_IN).await;
        refused(site.request(Method::POST, "/api/v1/logout"), 403, NOT_SIGNED_IN).await;
        for authorization in [
            String::from("Token invalid"),
            String::from("Token "),
            format!("Bearer {token}"),
            format!("token {token}"),
            format!("Token  {token}"),
            format!("Token {token}x"),
            token.clone(),
        ] {
            let request = site.get("/api/v1/sources").header("Authorization", authorization);
            refused(request, 403, NOT_SIGNED_IN).await;
        }
        site.read("/api/v1/sources", &token).await;
    })
    .await;
}

#[tokio::test]
async fn with_a_session_unknown_routes_are_not_found() {
    bounded(async {
        let site = Site::start(small()).await;
        let token = site.sign_in(MARLOW).await;
        for path in ["/api/v1/nothing", "/api/v1/sources/", "/api/v2/index", "/"] {
            refused(site.signed(Method::GET, path, &token), 404, NOT_FOUND).await;
        }
    })
    .await;
}

#[tokio::test]
async fn a_known_route_knows_its_methods() {
    bounded(async {
        let site = Site::start(small()).await;
        let token = site.sign_in(MARLOW).await;
        refused(site.signed(Method::POST, "/api/v1/sources", &token).body("{}"), 405, WRONG_METHOD).await;
        refused(site.signed(Method::DELETE, "/api/v1/users", &token), 405, WRONG_METHOD).await;
        refused(site.signed(Method::GET, "/api/v1/token", &token), 405, WRONG_METHOD).await;
        refused(site.signed(Method::GET, "/api/v1/logout", &token), 405, WRONG_METHOD).await;
    })
    .await;
}

#[tokio::test]
async fn a_web_server_lets_four_methods_through() {
    bounded(async {
        let site = Site::start(small()).await;
        let token = site.sign_in(MARLOW).await;
        let answer = site.signed(Method::PUT, "/api/v1/sources", &token).send().await.unwrap();
        assert_eq!(answer.status(), 403);
        assert!(answer.headers()["content-type"].to_str().unwrap().starts_with("text/html"));
        assert_eq!(answer.headers()["cache-control"], "no-store");

        let web_server = WebServer::Development;
        let site = Site::start(ServerOptions { web_server, ..small() }).await;
        let token = site.sign_in(MARLOW).await;
        refused(site.signed(Method::PUT, "/api/v1/sources", &token), 405, WRONG_METHOD).await;
        refused(site.request(Method::PUT, "/api/v1/sources"), 403, NOT_SIGNED_IN).await;
    })
    .await;
}

#[tokio::test]
async fn head_has_the_length_and_no_body() {
    bounded(async {
        let site = Site::start(small()).await;
        let token = site.sign_in(MARLOW).await;
        let get = site.signed(Method::GET, "/api/v1/sources", &token).send().await.unwrap();
        let length = get.text().await.unwrap().len();
        let head = site.signed(Method::HEAD, "/api/v1/sources", &token).send().await.unwrap();
        assert_eq!(head.status(), 200);
        assert_eq!(head.headers()["content-length"], length.to_string().as_str());
        assert_eq!(head.headers()["content-type"], "application/json");
        assert_eq!(head.text().await.unwrap(), "");
        assert_eq!(site.request(Method::HEAD, "/api/v1/sources").send().await.unwrap().status(), 403);
    })
    .await;
}

#[tokio::test]
async fn a_request_id_comes_back_when_it_is_well_formed() {
    bounded(async {
        let good = "req-72d64b57-4632-4d3e-96b0-24a0428f7ec1";
        let cases = [
            (ApiFlavour::Newer, good, true),
            (ApiFlavour::Newer, "72d64b57-4632-4d3e-96b0-24a0428f7ec1", false),
            (ApiFlavour::Newer, "req-72d64b5746324d3e96b024a0428f7ec1", false),
            (ApiFlavour::Newer, "req-", false),
            (ApiFlavour::Classic, good, false),
        ];
        for (api, id, returned) in cases {
            let site = Site::start(ServerOptions { api, ..small() }).await;
            let token = site.sign_in(MARLOW).await;
            let answer = site.signed(Method::GET, "/api/v1/user", &token).header("X-Request-ID", id);
            let answer = answer.send().await.unwrap();
            let back = answer.headers().get("x-request-id").map(|id| id.to_str().unwrap());
            assert_eq!(back, returned.then_some(id), "{api:?} {id}");
            let logged = site.control().requests().pop().unwrap();
            assert_eq!(logged.request_id.as_deref(), Some(id));
        }
    })
    .await;
}

#[tokio::test]
async fn the_log_has_every_request_and_its_answer() {
    bounded(async {
        let site = Site::start(small()).await;
        site.get("/api/v1/sources?x=1").send().await.unwrap();
        let token = site.sign_in(MARLOW).await;
        site.read("/api/v1/sources", &token).await;
        let requests = site.control().requests();
        let told: Vec<_> = requests.iter().map(|r| (r.number, r.method.as_str(), r.path.as_str(), r.status)).collect();
        assert_eq!(
            told,
            [
                (1, "GET", "/api/v1/sources", Some(403)),
                (2, "POST", "/api/v1/token", Some(200)),
                (3, "GET", "/api/v1/sources", Some(200)),
            ]
        );
        assert_eq!(site.control().count("POST", "/api/v1/token"), 1);
        assert_eq!(site.control().count("GET", "/api/v1/sources"), 2);
        assert_eq!(site.control().count("GET", "/api/v1/users"), 0);
        assert!(!format!("{requests:?}").contains(&token));
        site.control().apply(Command::ClearLog).unwrap();
        assert_eq!(site.control().count("GET", "/api/v1/sources"), 0);
    })
    .await;
}

#[tokio::test]
async fn a_body_beyond_the_limit_is_refused_unread() {
    bounded(async {
        let site = Site::start(small()).await;
        let answer = connections::raw(
            &site,
            "POST /api/v1/token HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: 524288001\r\n\r\n",
        )
        .await;
        assert!(answer.starts_with("HTTP/1.1 413 "), "{answer}");
    })
    .await;
}

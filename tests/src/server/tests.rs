//! Tests of the whole server, from outside: over TCP, as a client meets it.

use std::future::Future;
use std::time::Duration;

use jiff::Timestamp;
use reqwest::redirect::Policy;
use reqwest::{Method, RequestBuilder, Response};
use serde_json::{Value, json};

use super::*;
use crate::clock::Clock;
use crate::generator::{Account, MARLOW, Recipe, TERNBERG};

mod access;
mod acts;
mod connections;
mod control;
mod downloads;
mod faults;
mod handmade;
mod lists;
mod login;
mod records;
mod replies;
mod snapshots;
mod source_keys;

/// 2026-11-02T08:30:00Z, the beginning of a step of one-time codes.
const NOW: Timestamp = Timestamp::constant(1_793_608_200, 0);
/// The messages of refusals, letter by letter.
const NOT_SIGNED_IN: &str = "{\"error\":\"Forbidden\",\"message\":\"You don't have the permission to access the requested \
                             resource. It is either read-protected or not readable by the server.\"}\n";
const NOT_FOUND: &str = "{\"error\":\"Not Found\",\"message\":\"The requested URL was not found on the server. If you \
                         entered the URL manually please check your spelling and try again.\"}\n";

/// A running server and somebody who talks to it.
struct Site {
    server: Server,
    client: reqwest::Client,
}

impl Site {
    async fn start(options: ServerOptions) -> Self {
        // reqwest insists on it, and one test of the process is the first.
        let _already_there = rustls::crypto::ring::default_provider().install_default();
        let client = reqwest::Client::builder().no_proxy().no_gzip().redirect(Policy::none()).build().unwrap();
        Self { server: Server::start(options).await.unwrap(), client }
    }

    fn control(&self) -> &Control {
        self.server.control()
    }

    fn request(&self, method: Method, path: &str) -> RequestBuilder {
        self.client.request(method, format!("{}{path}", self.server.origin()))
    }

    fn get(&self, path: &str) -> RequestBuilder {
        self.request(Method::GET, path)
    }

    fn signed(&self, method: Method, path: &str, token: &str) -> RequestBuilder {
        self.request(method, path).header("Authorization", format!("Token {token}"))
    }

    fn login(&self, account: Account) -> RequestBuilder {
        let now = self.control().clock().now();
        self.request(Method::POST, "/api/v1/token").json(&json!({
            "username": account.username,
            "passphrase": account.passphrase,
            "one_time_code": account.code_at(now),
        }))
    }

    async fn sign_in(&self, account: Account) -> String {
        let answer = json_of(self.login(account).send().await.unwrap()).await;
        answer["token"].as_str().unwrap().to_owned()
    }

    /// What a signed-in journalist gets, which must be a success.
    async fn read(&self, path: &str, token: &str) -> Value {
        json_of(self.signed(Method::GET, path, token).send().await.unwrap()).await
    }
}

/// A world with a fixed time; the recipe's world is older than that.
fn options(world: World) -> ServerOptions {
    ServerOptions { clock: Clock::fixed(NOW), ..ServerOptions::new(world) }
}

fn small() -> ServerOptions {
    options(Recipe::new(3, 4).generate().unwrap())
}

/// The first source of the list.
fn first_source(site: &Site) -> RecordId {
    site.control().with_world(|world| {
        let listed = |source: &&Source| source.state == SourceState::Listed;
        world.sources().find(listed).unwrap().id.clone()
    })
}

async fn json_of(answer: Response) -> Value {
    assert_eq!(answer.status(), 200);
    assert_eq!(answer.headers()["content-type"], "application/json");
    answer.json().await.unwrap()
}

async fn refused(request: RequestBuilder, status: u16, body: &str) {
    let answer = request.send().await.unwrap();
    assert_eq!(answer.status(), status);
    assert_eq!(answer.headers()["content-type"], "application/json");
    assert_eq!(answer.text().await.unwrap(), body);
}

/// Runs a test under a watchdog: a test that would hang fails instead.
async fn bounded(test: impl Future<Output = ()>) {
    tokio::time::timeout(Duration::from_secs(120), test).await.expect("the test hangs");
}

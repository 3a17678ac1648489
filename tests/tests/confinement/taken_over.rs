//! A client that was taken over: it speaks raw bytes, and gets through a call what the call's scope has, and nothing else.

use std::collections::BTreeSet;
use std::process::Stdio;
use std::time::Duration;

use protocol::answer::Part;
use protocol::frame::{FrameDecoder, encode_frame, frame_bytes};
use protocol::handshake::{decode_welcome, encode_hello};
use protocol::value::{
    ArmoredMessage, Bounded, ItemId, OneTimeCode, OrderNumber, Passphrase, RequestId, Size, SoftwareVersion, Token,
    Username,
};
use protocol::{
    Call, CallId, Deadline, ErrorKind, FromProxy, Hello, Items, Limits, Refusal, Request, Scope, SeenItems, Stage,
    ToProxy, Welcome,
};
use staging::environment::{Environment, EnvironmentOptions};
use staging::generator::MARLOW;
use staging::server::LoggedRequest;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::process::{Child, Command};

/// A bound for what hangs, not a measure.
const PATIENCE: Duration = Duration::from_secs(120);
/// How often bytes of a frame are changed at random, in each scope.
const ROUNDS: u64 = 12;
/// Stands for every id, so that it can be found in the bytes.
const ID: &str = "6f6d21bc-7f5e-4d0e-9a3c-0d9ab2a3c001";
const TOKEN: &str = "a-token-that-can-be-found-in-bytes!!";

/// A call in the hands of whoever has taken over the client.
struct Raw {
    process: Child,
}

/// What a call gave back.
#[derive(Debug)]
struct Heard {
    welcome: Option<Welcome>,
    parts: Vec<FromProxy>,
    exit: Option<i32>,
}

impl Raw {
    fn open(environment: &Environment, scope: Scope) -> Self {
        let made = environment.directory().join("caller");
        let caller = if made.is_file() { made } else { environment.caller().unwrap() };
        let process = Command::new(caller)
            .args(["--", "sd-proxy", &format!("splitdrop.Proxy+{scope}")])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        Self { process }
    }

    /// Sends these bytes and no more, and hears the call out.
    async fn say(mut self, bytes: &[u8]) -> Heard {
        let (mut input, mut output) = (self.process.stdin.take().unwrap(), self.process.stdout.take().unwrap());
        let saying = async {
            // The proxy may have had enough before the end.
            drop(input.write_all(bytes).await);
            drop(input);
        };
        let mut heard = Vec::new();
        let hearing = output.read_to_end(&mut heard);
        let (_, read) = tokio::time::timeout(PATIENCE, async { tokio::join!(saying, hearing) }).await.unwrap();
        read.unwrap();
        let status = tokio::time::timeout(PATIENCE, self.process.wait()).await.unwrap().unwrap();
        let mut frames = FrameDecoder::new();
        frames.feed(&heard);
        let welcome = frames.next_payload().unwrap().map(|payload| decode_welcome(payload).unwrap());
        let mut parts = Vec::new();
        while let Some(part) = frames.next_message().unwrap() {
            parts.push(part);
        }
        frames.finish().unwrap();
        Heard { welcome, parts, exit: status.code() }
    }
}

impl Heard {
    /// How the call of this id ended.
    fn end(&self, id: u32) -> &Part {
        let ends = |part: &&FromProxy| part.id == CallId(id) && !matches!(part.part, Part::Begin | Part::Items(_));
        let found: Vec<_> = self.parts.iter().filter(ends).collect();
        assert_eq!(found.len(), 1, "{id}: {self:?}");
        &found[0].part
    }
}

fn hello(scope: Scope) -> Vec<u8> {
    let software = SoftwareVersion::try_new("0.0.0-taken-over").unwrap();
    let hello = Hello { scope, limits: Limits::OURS, api_level: None, software };
    frame_bytes(&encode_hello(&hello).unwrap()).unwrap().to_vec()
}

fn request(id: u32, call: Call) -> Vec<u8> {
    let deadline = Deadline::try_new(Duration::from_secs(60)).unwrap();
    encode_frame(&ToProxy::Call(Request { id: CallId(id), request: RequestId::new([7; 16]), deadline, call }))
        .unwrap()
        .to_vec()
}

fn id<I: std::str::FromStr<Err: std::fmt::Debug>>() -> I {
    ID.parse().unwrap()
}

/// Every call that the protocol has.
fn every_call(token: &str, login: &str) -> Vec<Call> {
    let token = || Token::try_new(token).unwrap();
    let lines: Vec<_> = login.lines().collect();
    let message = "-----BEGIN PGP MESSAGE-----\n\nwcDMA\n-----END PGP MESSAGE-----\n";
    let calls = vec![
        Call::Health,
        Call::Login {
            username: Username::try_new(lines[0]).unwrap(),
            passphrase: Passphrase::try_new(lines[1]).unwrap(),
            one_time_code: OneTimeCode::try_new(lines[2]).unwrap(),
        },
        Call::Logout { token: token() },
        Call::GetUsers { token: token() },
        Call::GetSources { token: token() },
        Call::GetSubmissions { token: token(), source: Some(id()) },
        Call::GetAllReplies { token: token() },
        Call::Star { token: token(), source: id() },
        Call::Unstar { token: token(), source: id() },
        Call::MarkSeen {
            token: token(),
            items: SeenItems { files: Bounded::try_new(vec![id()]).unwrap(), ..SeenItems::default() },
        },
        Call::DeleteSource { token: token(), source: id() },
        Call::DeleteConversation {
            token: token(),
            source: id(),
            items: Bounded::try_new(vec![ItemId::Submission(id())]).unwrap(),
            upper_bound: OrderNumber::try_new(9).unwrap(),
        },
        Call::DeleteSubmission { token: token(), source: id(), submission: id() },
        Call::DeleteReply { token: token(), source: id(), reply: id() },
        Call::DownloadSubmission { token: token(), source: id(), submission: id(), from: Size::try_new(0).unwrap() },
        Call::DownloadReply { token: token(), source: id(), reply: id(), from: Size::try_new(0).unwrap() },
        Call::SendReply {
            token: token(),
            source: id(),
            reply: id(),
            message: ArmoredMessage::try_new(message).unwrap(),
        },
    ];
    // Every kind is among them, and once.
    let names: BTreeSet<_> = calls.iter().map(Call::name).collect();
    assert_eq!(names.len(), calls.len());
    calls
}

/// What a scope may make the proxy ask for, as method and path: `*` stands for one part of a path.
fn requests_of(scope: Scope) -> &'static [(&'static str, &'static str)] {
    match scope {
        Scope::Session => &[("POST", "/api/v1/token"), ("POST", "/api/v1/logout")],
        Scope::Metadata => &[
            ("GET", "/api/v1/users"),
            ("GET", "/api/v1/sources"),
            ("GET", "/api/v1/submissions"),
            ("GET", "/api/v1/sources/*/submissions"),
            ("GET", "/api/v1/replies"),
        ],
        Scope::Mark => &[
            ("POST", "/api/v1/sources/*/add_star"),
            ("DELETE", "/api/v1/sources/*/remove_star"),
            ("POST", "/api/v1/seen"),
        ],
        Scope::Delete => &[
            ("DELETE", "/api/v1/sources/*"),
            ("GET", "/api/v1/sources/*/submissions"),
            ("GET", "/api/v1/sources/*/replies"),
            ("DELETE", "/api/v1/sources/*/submissions/*"),
            ("DELETE", "/api/v1/sources/*/replies/*"),
        ],
        Scope::Download => {
            &[("GET", "/api/v1/sources/*/submissions/*/download"), ("GET", "/api/v1/sources/*/replies/*/download")]
        }
        Scope::Reply => &[("POST", "/api/v1/sources/*/replies")],
    }
}

fn fits(path: &str, pattern: &str) -> bool {
    let (path, pattern): (Vec<_>, Vec<_>) = (path.split('/').collect(), pattern.split('/').collect());
    path.len() == pattern.len() && path.iter().zip(pattern).all(|(part, wanted)| wanted == "*" || *part == wanted)
}

/// What the proxy may send along, whatever it is asked.
const HEADERS: [&str; 12] = [
    "accept",
    "accept-encoding",
    "authorization",
    "connection",
    "content-length",
    "content-type",
    "host",
    "if-range",
    "prefer",
    "range",
    "user-agent",
    "x-request-id",
];

/// Checks that requests are such as this scope has, and hold nothing that a client could choose.
fn check(scope: Scope, requests: &[LoggedRequest]) {
    for request in requests {
        let known = requests_of(scope);
        let fit = known.iter().any(|(method, path)| request.method == *method && fits(&request.path, path));
        assert!(fit && request.query.is_none(), "{scope}: {request:?}");
        for (name, _) in &request.headers {
            assert!(HEADERS.contains(&name.as_str()), "{scope}: {name} in {request:?}");
        }
        assert!(request.header("host").is_some_and(|host| host.starts_with("staging")), "{request:?}");
    }
}

/// The requests since so many.
fn since(environment: &Environment, before: usize) -> Vec<LoggedRequest> {
    environment.server().control().requests().split_off(before)
}

fn count(environment: &Environment) -> usize {
    environment.server().control().requests().len()
}

/// An environment without a daemon of ours: the client is whoever has taken it over.
async fn taken_over() -> Environment {
    let mut environment = Environment::with_daemon(EnvironmentOptions::with_sources(2, 2).unwrap()).await.unwrap();
    environment.stop_daemon(nix::sys::signal::Signal::SIGTERM).await.unwrap();
    environment
}

/// Signs in by raw bytes; gives the token.
async fn token(environment: &Environment) -> String {
    let login = every_call(TOKEN, &environment.credentials(&MARLOW)).swap_remove(1);
    let bytes = [hello(Scope::Session), request(0, login)].concat();
    let heard = Raw::open(environment, Scope::Session).say(&bytes).await;
    let signed_in = heard.parts.iter().find_map(|part| match &part.part {
        Part::Items(Items::SignedIn(signed_in)) => Some(signed_in.token.expose().to_owned()),
        Part::Begin | Part::Items(_) | Part::End { .. } | Part::Failed(_) => None,
    });
    signed_in.unwrap_or_else(|| panic!("{heard:?}"))
}

#[tokio::test(flavor = "multi_thread")]
async fn each_scope_gives_its_own_calls_and_no_request_is_made_for_another() {
    let environment = taken_over().await;
    let token = token(&environment).await;
    let mut asked_in_all = 0;
    for scope in Scope::ALL {
        let calls = || (0..).zip(every_call(&token, &environment.credentials(&MARLOW)));
        let (own, others): (Vec<_>, Vec<_>) = calls().partition(|(_, call)| call.allowed_in(scope));
        let before = count(&environment);
        let mut bytes = hello(scope);
        for (id, call) in others.clone() {
            bytes.extend(request(id, call));
        }
        let heard = Raw::open(&environment, scope).say(&bytes).await;
        assert!(matches!(heard.welcome, Some(Welcome::Ready { scope: started, .. }) if started == scope), "{heard:?}");
        for (id, call) in &others {
            match heard.end(*id) {
                Part::Failed(error) => {
                    assert_eq!((error.kind, error.stage), (ErrorKind::OutOfScope, Stage::Admission), "{}", call.name());
                }
                other => panic!("{} in {scope}: {other:?}", call.name()),
            }
        }
        assert_eq!((heard.parts.len(), count(&environment)), (others.len(), before), "{scope}");

        // Its own calls do reach the server. The end of the session comes last, and is one of them.
        for (id, call) in own.into_iter().filter(|(_, call)| !matches!(call, Call::Logout { .. })) {
            let bytes = [hello(scope), request(id, call)].concat();
            Raw::open(&environment, scope).say(&bytes).await.end(id);
        }
        let made = since(&environment, before);
        assert!(!made.is_empty(), "{scope} reached nothing");
        check(scope, &made);
        asked_in_all += made.len();
    }
    assert!(asked_in_all >= Scope::ALL.len());
    environment.stop().await.unwrap();
}

/// Who says another scope than the call was opened with gets nothing.
#[tokio::test(flavor = "multi_thread")]
async fn the_scope_is_what_dom0_allowed_and_not_what_the_client_says() {
    let environment = taken_over().await;
    let before = count(&environment);
    for (opened, said) in
        [(Scope::Metadata, Scope::Delete), (Scope::Mark, Scope::Session), (Scope::Delete, Scope::Reply)]
    {
        let calls = (0..).zip(every_call(TOKEN, &environment.credentials(&MARLOW)));
        let bytes = calls.fold(hello(said), |mut bytes, (id, call)| {
            bytes.extend(request(id, call));
            bytes
        });
        let heard = Raw::open(&environment, opened).say(&bytes).await;
        let refused = Welcome::Refused(Refusal::Scope { started: opened });
        assert_eq!((heard.welcome.as_ref(), heard.parts.len()), (Some(&refused), 0), "{heard:?}");
    }
    assert_eq!(count(&environment), before);
    environment.stop().await.unwrap();
}

/// Numbers that look random and are the same each time.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: usize) -> usize {
        // Knuth's multiplier; the high bits are the good ones.
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        usize::try_from(self.0 >> 33).unwrap() % sides
    }
}

/// The bytes with each `from` in them replaced; both have the same length, so that the frame stays whole.
fn replaced(bytes: &[u8], from: &str, to: &str) -> Vec<u8> {
    assert_eq!(from.len(), to.len(), "{to}");
    let mut bytes = bytes.to_vec();
    let places: Vec<_> = bytes.windows(from.len()).enumerate().filter(|(_, part)| *part == from.as_bytes()).collect();
    let places: Vec<_> = places.into_iter().map(|(place, _)| place).collect();
    for place in places {
        bytes[place..place + to.len()].copy_from_slice(to.as_bytes());
    }
    bytes
}

/// No id and no token carries a path, another server or a header.
#[tokio::test(flavor = "multi_thread")]
async fn n5_what_is_put_in_the_place_of_ids_and_tokens_chooses_no_url_and_no_header() {
    let environment = taken_over().await;
    let ids = [
        "../../../../api/v1/token/../../admin",
        "6f6d21bc/../../token?x=y#6f6d21bc//x",
        "http://elsewhere.example/0d9ab2a3c00",
        "6f6d21bc%2f..%2f..%2ftoken%00aaaaaaa",
        "6f6d HTTP/1.1\r\nX-Evil: 1\r\n\r\nGET /api",
    ];
    let tokens = [
        "a-token\r\nX-Evil: 1\r\nHost: elsewhere!",
        "a-token-that-can-be-found-in\0bytes!!",
        "a-token\n\nGET /admin HTTP/1.1\n\naaaaaa",
    ];
    for scope in Scope::ALL {
        for (from, to) in ids.map(|to| (ID, to)).into_iter().chain(tokens.map(|to| (TOKEN, to))) {
            // Each call alone: a bad frame ends the session.
            for call in every_call(TOKEN, &environment.credentials(&MARLOW)) {
                let whole = request(1, call.clone());
                let bytes = replaced(&whole, from, to);
                if !call.allowed_in(scope) || bytes == whole {
                    continue;
                }
                let before = count(&environment);
                let heard = Raw::open(&environment, scope).say(&[hello(scope), bytes].concat()).await;
                assert_eq!(since(&environment, before), [], "{} with {to:?}", call.name());
                let failed = |part: &FromProxy| matches!(part.part, Part::Failed(_));
                assert!(heard.parts.iter().all(failed) && heard.exit != Some(0), "{}: {heard:?}", call.name());
            }
        }
    }
    environment.stop().await.unwrap();
}

/// Bytes changed at random end in typed errors, or in calls of the scope: what is heard is frames to the last byte.
#[tokio::test(flavor = "multi_thread")]
async fn n5_bytes_changed_at_random_get_nothing_beyond_the_scope() {
    let environment = taken_over().await;
    let token = token(&environment).await;
    let mut dice = Dice(1);
    for scope in Scope::ALL {
        for round in 0..ROUNDS {
            let before = count(&environment);
            let calls = (0..).zip(every_call(&token, &environment.credentials(&MARLOW)));
            let mut bytes = Vec::new();
            for (id, call) in calls.filter(|(_, call)| !matches!(call, Call::Login { .. } | Call::Logout { .. })) {
                bytes.extend(request(id, call));
            }
            for _ in 0..=dice.roll(6) {
                let place = dice.roll(bytes.len());
                match dice.roll(4) {
                    0 => bytes[place] ^= 1 << dice.roll(8),
                    1 => bytes[place] = u8::try_from(dice.roll(256)).unwrap(),
                    2 => drop(bytes.drain(place..(place + dice.roll(40)).min(bytes.len()))),
                    _ => drop(bytes.splice(place..place, *b"GET /admin HTTP/1.1\r\n\r\n")),
                }
            }
            let heard = Raw::open(&environment, scope).say(&[hello(scope), bytes].concat()).await;
            assert!(heard.welcome.is_some(), "{scope}, {round}: {heard:?}");
            check(scope, &since(&environment, before));
        }
    }
    environment.stop().await.unwrap();
}

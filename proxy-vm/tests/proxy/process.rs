//! The program itself, as qrexec starts it.

use std::path::Path;
use std::process::{ExitStatus, Stdio};
use std::sync::Arc;

use protocol::handshake::Welcome;
use protocol::value::{SettingName, Size};
use protocol::{Call, ErrorKind, Refusal, Scope, Stage};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::process::{Child, Command};
use tokio::sync::Notify;
use tokio::task::JoinSet;

use crate::client::{Client, get_sources, token};
use crate::fixtures::{any_list, id};
use crate::replies::reply;
use crate::server::{Act, Server, answer, ok};
use crate::socks_stub::{SocksStub, Way};

/// The program with nothing in its environment but `variables`.
fn program(variables: &[(&str, &str)]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_splitdrop-proxy"));
    command.env_clear().envs(variables.iter().copied());
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).kill_on_drop(true);
    command
}

/// The program as qrexec starts it for `scope`.
fn service(scope: Scope, variables: &[(&str, &str)]) -> Command {
    let mut command = program(variables);
    command.env("QREXEC_SERVICE_FULL_NAME", format!("splitdrop.Proxy+{scope}"));
    command.env("QREXEC_SERVICE_ARGUMENT", scope.name()).env("QREXEC_REMOTE_DOMAIN", "sd-app");
    command
}

pub(crate) fn start(variables: &[(&str, &str)]) -> (Client, Child) {
    start_in(Scope::Metadata, variables)
}

/// The program as it is called by another VM than the client's, or by nobody.
pub(crate) fn start_as(caller: Option<&str>, variables: &[(&str, &str)]) -> (Client, Child) {
    let mut command = service(Scope::Metadata, variables);
    match caller {
        Some(caller) => command.env("QREXEC_REMOTE_DOMAIN", caller),
        None => command.env_remove("QREXEC_REMOTE_DOMAIN"),
    };
    over(command)
}

fn start_in(scope: Scope, variables: &[(&str, &str)]) -> (Client, Child) {
    over(service(scope, variables))
}

fn over(mut command: Command) -> (Client, Child) {
    let mut child = command.spawn().unwrap();
    let (stdin, stdout) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
    (Client::over(Box::new(stdout), Box::new(stdin), JoinSet::new()), child)
}

pub(crate) async fn code_and_stderr(mut child: Child) -> (ExitStatus, String) {
    let mut stderr = String::new();
    child.stderr.take().unwrap().read_to_string(&mut stderr).await.unwrap();
    (child.wait().await.unwrap(), stderr)
}

#[tokio::test]
async fn a_session_runs_and_ends_with_its_input() {
    let server = Server::new(|seen| Act::Send(ok(&any_list(seen.path())))).await;
    let origin = format!("http://{}", server.address);
    let (mut client, child) = start(&[("SD_PROXY_ORIGIN", &origin), ("SD_PROXY_TOR", "off")]);
    assert!(matches!(client.handshake(Scope::Metadata).await, Some(Welcome::Ready { .. })));
    assert_eq!(client.call(get_sources()).await.listed(), (2, 0));
    drop(client);
    let (status, stderr) = code_and_stderr(child).await;
    assert_eq!((status.code(), stderr.as_str()), (Some(0), ""));
}

#[tokio::test]
async fn missing_and_invalid_settings_reach_the_client() {
    let missing: &[(&str, &str)] = &[];
    let invalid: &[(&str, &str)] = &[("SD_PROXY_ORIGIN", "http://secretname.onion/path")];
    let onion: &[(&str, &str)] = &[("SD_PROXY_ORIGIN", "http://secretname.onion"), ("SD_PROXY_TOR", "off")];
    let log = tempfile::tempdir().unwrap();
    let directory: &[(&str, &str)] =
        &[("SD_PROXY_ORIGIN", "http://secretname.onion"), ("SD_PROXY_LOG_FILE", log.path().to_str().unwrap())];
    let limit: &[(&str, &str)] = &[("SD_PROXY_ORIGIN", "http://secretname.onion"), ("SD_PROXY_DELETE_LIMIT", "0")];
    for (settings, refusal) in [
        (missing, Refusal::SettingMissing(SettingName::try_new("SD_PROXY_ORIGIN").unwrap())),
        (invalid, Refusal::SettingInvalid(SettingName::try_new("SD_PROXY_ORIGIN").unwrap())),
        (onion, Refusal::SettingInvalid(SettingName::try_new("SD_PROXY_TOR").unwrap())),
        (limit, Refusal::SettingInvalid(SettingName::try_new("SD_PROXY_DELETE_LIMIT").unwrap())),
        (directory, Refusal::SettingInvalid(SettingName::try_new("SD_PROXY_LOG_FILE").unwrap())),
    ] {
        let (mut client, child) = start(settings);
        assert_eq!(client.handshake(Scope::Metadata).await, Some(Welcome::Refused(refusal)));
        let (status, stderr) = code_and_stderr(child).await;
        assert_eq!((status.code(), stderr.as_str()), (Some(1), ""));
    }
}

#[tokio::test]
async fn without_a_scope_it_does_not_start() {
    for variables in [
        &[][..],
        &[("QREXEC_SERVICE_FULL_NAME", "splitdrop.Proxy+")],
        &[("QREXEC_SERVICE_ARGUMENT", "everything")],
        &[("QREXEC_SERVICE_ARGUMENT", "-session"), ("QREXEC_SERVICE_FULL_NAME", "splitdrop.Proxy+session")],
    ] {
        let output = program(variables).output().await.unwrap();
        assert_eq!((output.status.code(), output.stdout.as_slice()), (Some(2), &b""[..]), "{variables:?}");
        assert!(String::from_utf8(output.stderr).unwrap().contains("--help"), "{variables:?}");
    }
}

#[tokio::test]
async fn the_scope_of_qrexec_counts_and_not_the_clients() {
    let (mut client, _child) = start(&[("SD_PROXY_ORIGIN", "http://secretname.onion")]);
    let refused = Welcome::Refused(Refusal::Scope { started: Scope::Metadata });
    assert_eq!(client.handshake(Scope::Session).await, Some(refused));
}

#[tokio::test]
async fn help_is_for_persons_and_not_for_callers() {
    for flag in ["--help", "--version"] {
        let output = program(&[]).arg(flag).output().await.unwrap();
        assert_eq!(output.status.code(), Some(0));
        assert!(!output.stdout.is_empty() && output.stderr.is_empty());
        // As qrexec passes an argument that the caller made up.
        let variables = [("QREXEC_SERVICE_FULL_NAME", "splitdrop.Proxy+--help"), ("QREXEC_SERVICE_ARGUMENT", flag)];
        let output = program(&variables).arg(flag).output().await.unwrap();
        assert_eq!((output.status.code(), output.stdout.as_slice()), (Some(2), &b""[..]));
    }
}

#[tokio::test]
async fn n4_the_environments_proxies_are_ignored() {
    let trap = Server::answering(ok("{}")).await;
    let server = Server::new(|seen| Act::Send(ok(&any_list(seen.path())))).await;
    let socks = SocksStub::new(Way::Relay(server.address)).await;
    let (origin, to_trap) = (format!("http://{}", server.address), format!("http://{}", trap.address));
    let to_socks = socks.address.to_string();
    let names = ["HTTP_PROXY", "http_proxy", "HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy"];
    let proxies: Vec<_> = names.into_iter().map(|name| (name, to_trap.as_str())).collect();

    let mut direct = vec![("SD_PROXY_ORIGIN", origin.as_str()), ("SD_PROXY_TOR", "off")];
    direct.extend_from_slice(&proxies);
    let (mut client, _child) = start(&direct);
    client.handshake(Scope::Metadata).await.unwrap();
    assert_eq!(client.call(get_sources()).await.listed(), (2, 0));
    assert!(socks.asked().is_empty());

    // Nor does the environment's list of exceptions lead around Tor.
    let mut tor = vec![("SD_PROXY_ORIGIN", "http://secretname.onion"), ("SD_PROXY_SOCKS", to_socks.as_str())];
    tor.extend_from_slice(&proxies);
    tor.extend_from_slice(&[("NO_PROXY", "*"), ("no_proxy", "*"), ("REQUEST_METHOD", "GET")]);
    let (mut client, _child) = start(&tor);
    client.handshake(Scope::Metadata).await.unwrap();
    assert_eq!(client.call(get_sources()).await.listed(), (2, 0));
    assert_eq!(socks.asked().len(), 1);
    assert_eq!(trap.connections(), 0);
}

fn log_of(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap()
}

#[tokio::test]
async fn the_log_holds_codes_and_no_secrets() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("proxy.log");
    let socks = SocksStub::new(Way::Reply(4)).await;
    let (mut client, child) = start(&[
        ("SD_PROXY_ORIGIN", "http://secretname.onion"),
        ("SD_PROXY_SOCKS", &socks.address.to_string()),
        ("SD_PROXY_LOG", "trace"),
        ("SD_PROXY_LOG_FILE", path.to_str().unwrap()),
    ]);
    client.handshake(Scope::Metadata).await.unwrap();
    let error = client.call(get_sources()).await.failure();
    assert_eq!((error.kind, error.stage), (ErrorKind::Unreachable, Stage::Route));
    drop(client);

    let server = Server::new(|seen| Act::Send(ok(&any_list(seen.path())))).await;
    let origin = format!("http://{}", server.address);
    let (mut client, other) = start(&[
        ("SD_PROXY_ORIGIN", &origin),
        ("SD_PROXY_TOR", "off"),
        ("SD_PROXY_LOG", "trace"),
        ("SD_PROXY_LOG_FILE", path.to_str().unwrap()),
    ]);
    client.handshake(Scope::Metadata).await.unwrap();
    client.call(get_sources()).await.listed();
    drop(client);
    for child in [child, other] {
        assert_eq!(code_and_stderr(child).await.0.code(), Some(0));
    }

    let log = log_of(&path);
    for told in ["session started", "stage=\"route\"", "records=2", "unreadable=0", "TOR IS OFF", "session ended"] {
        assert!(log.contains(told), "{told} is not in the log:\n{log}");
    }
    let address = server.address.to_string();
    for secret in ["secretname", "onion", "made.up-token", "Token", "meadow", "BEGIN PGP", "msg.gpg", address.as_str()]
    {
        assert!(!log.contains(secret), "{secret} is in the log:\n{log}");
    }
}

#[tokio::test]
async fn the_log_says_how_much_was_downloaded_and_nothing_of_what() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("proxy.log");
    let etag = format!("sha256:{}", "5a".repeat(32));
    let headers = [("Etag", etag.as_str()), ("Content-Range", "bytes 4000-4017/4018")];
    let server = Server::answering(answer("206 PARTIAL CONTENT", &headers, b"made-up-ciphertext")).await;
    let (mut client, child) = start_in(
        Scope::Download,
        &[
            ("SD_PROXY_ORIGIN", &format!("http://{}", server.address)),
            ("SD_PROXY_TOR", "off"),
            ("SD_PROXY_LOG", "trace"),
            ("SD_PROXY_LOG_FILE", path.to_str().unwrap()),
        ],
    );
    assert!(matches!(client.handshake(Scope::Download).await, Some(Welcome::Ready { .. })));
    let (source, submission) = (id(1, 1).parse().unwrap(), id(2, 1).parse().unwrap());
    for (from, count) in [(4000, Ok(3)), (4001, Err(ErrorKind::BadResponse))] {
        let from = Size::try_new(from).unwrap();
        let outcome = client.call(Call::DownloadSubmission { token: token(), source, submission, from }).await;
        assert_eq!(outcome.end.map_err(|error| error.kind), count);
    }
    drop(client);
    assert_eq!(code_and_stderr(child).await.0.code(), Some(0));
    let log = log_of(&path);
    for told in ["endpoint=\"download_submission\"", "status=206", "from=4000 bytes=18", "another part of the file"] {
        assert!(log.contains(told), "{told} is not in the log:\n{log}");
    }
    for secret in ["made-up", "5a5a", "made.up-token", "application", "bytes 4000", "bytes=4000"] {
        assert!(!log.contains(secret), "{secret} is in the log:\n{log}");
    }
}

#[tokio::test]
async fn the_log_says_that_a_reply_was_sent_and_nothing_of_it() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("proxy.log");
    let body = format!("{{\"filename\":\"12-quiet_meadow-reply.gpg\",\"uuid\":\"{}\"}}", id(3, 6));
    let server = Server::answering(answer("201 CREATED", &[], body.as_bytes())).await;
    let (mut client, child) = start_in(
        Scope::Reply,
        &[
            ("SD_PROXY_ORIGIN", &format!("http://{}", server.address)),
            ("SD_PROXY_TOR", "off"),
            ("SD_PROXY_LOG", "trace"),
            ("SD_PROXY_LOG_FILE", path.to_str().unwrap()),
        ],
    );
    assert!(matches!(client.handshake(Scope::Reply).await, Some(Welcome::Ready { .. })));
    assert_eq!(client.call(reply(6)).await.end, Ok(1));
    let other = client.call(reply(7)).await.failure();
    assert_eq!(other.kind, ErrorKind::BadResponse);
    drop(client);
    assert_eq!(code_and_stderr(child).await.0.code(), Some(0));
    let log = log_of(&path);
    for told in ["endpoint=\"send_reply\"", "status=201", "call failed"] {
        assert!(log.contains(told), "{told} is not in the log:\n{log}");
    }
    for secret in ["PGP MESSAGE", "made/up", "made.up-token", "meadow", "reply.gpg", &id(3, 6), &id(1, 7)] {
        assert!(!log.contains(secret), "{secret} is in the log:\n{log}");
    }
}

#[tokio::test]
async fn n5_nonsense_ends_the_session_with_an_error() {
    for nonsense in [&b"\xff\xff\xff\xff"[..], b"GET / HTTP/1.1\r\n\r\n", b"\x02\0\0\0hi", b"\x10\0\0\0SPLT"] {
        let mut child = service(Scope::Metadata, &[("SD_PROXY_ORIGIN", "http://secretname.onion")]).spawn().unwrap();
        let mut stdin = child.stdin.take().unwrap();
        stdin.write_all(nonsense).await.unwrap();
        drop(stdin);
        let mut stdout = Vec::new();
        child.stdout.take().unwrap().read_to_end(&mut stdout).await.unwrap();
        let (status, stderr) = code_and_stderr(child).await;
        assert_eq!((status.code(), stderr.as_str()), (Some(1), ""), "{nonsense:?}");
    }
}

#[tokio::test]
async fn a_request_to_end_is_obeyed_while_a_call_hangs() {
    let asked = Arc::new(Notify::new());
    let server = Server::new({
        let asked = Arc::clone(&asked);
        move |_| {
            asked.notify_one();
            Act::SendAndHang(Vec::new())
        }
    })
    .await;
    let origin = format!("http://{}", server.address);
    let (mut client, child) = start(&[("SD_PROXY_ORIGIN", &origin), ("SD_PROXY_TOR", "off")]);
    client.handshake(Scope::Metadata).await.unwrap();
    client.start(get_sources(), crate::client::LONG).await;
    asked.notified().await;
    let pid = child.id().unwrap().to_string();
    assert!(Command::new("kill").args(["-TERM", &pid]).status().await.unwrap().success());
    assert_eq!(code_and_stderr(child).await.0.code(), Some(0));
}

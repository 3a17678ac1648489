//! An `https` origin.

use std::path::Path;

use protocol::{CallError, ErrorKind, Scope, Stage};
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use tokio::io::AsyncWriteExt as _;
use tokio::net::TcpListener;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::PrivateKeyDer;

use crate::client::{Client, Outcome, get_sources};
use crate::fixtures::any_list;
use crate::process::start;
use crate::server::{Act, Server, ok};
use crate::socks_stub::{SocksStub, Way};

/// An authority whose certificate is in `file`, and a server for `name` with a certificate of that authority.
async fn server_for(name: &str, file: &Path) -> Server {
    let mut params = CertificateParams::new(Vec::new()).unwrap();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let authority = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
    std::fs::write(file, authority.pem()).unwrap();
    let key = KeyPair::generate().unwrap();
    let certificate = CertificateParams::new(vec![name.to_owned()]).unwrap().signed_by(&key, &authority).unwrap();
    let config = ServerConfig::builder_with_provider(ring::default_provider().into())
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![certificate.der().clone()], PrivateKeyDer::try_from(key.serialize_der()).unwrap())
        .unwrap();
    Server::tls(config, |seen| Act::Send(ok(&any_list(seen.path())))).await
}

/// Calls through the program, where `trusted` is the system's only authority.
async fn call(trusted: &Path, settings: &[(&str, &str)]) -> Outcome {
    let mut variables = vec![("SSL_CERT_FILE", trusted.to_str().unwrap())];
    variables.extend_from_slice(settings);
    let (mut client, _child) = start(&variables);
    client.handshake(Scope::Metadata).await.unwrap();
    client.call(get_sources()).await
}

#[track_caller]
fn assert_no_tls(error: &CallError) {
    assert_eq!((error.kind, error.stage), (ErrorKind::Unreachable, Stage::Connect));
    assert_eq!(error.detail.as_ref().unwrap().as_str(), "TLS failed");
}

#[tokio::test]
async fn a_server_that_the_system_trusts_is_spoken_to_with_and_without_tor() {
    let directory = tempfile::tempdir().unwrap();
    let authority = directory.path().join("authority.pem");
    let server = server_for("127.0.0.1", &authority).await;
    let origin = format!("https://{}", server.address);
    let direct = call(&authority, &[("SD_PROXY_ORIGIN", &origin), ("SD_PROXY_TOR", "off")]).await;
    assert_eq!(direct.listed(), (2, 0));

    let named = server_for("madeup.onion", &authority).await;
    let socks = SocksStub::new(Way::Relay(named.address)).await;
    let through_tor = call(
        &authority,
        &[("SD_PROXY_ORIGIN", "https://madeup.onion"), ("SD_PROXY_SOCKS", &socks.address.to_string())],
    )
    .await;
    assert_eq!(through_tor.listed(), (2, 0));
}

#[tokio::test]
async fn a_server_that_the_system_does_not_trust_sees_no_request() {
    let directory = tempfile::tempdir().unwrap();
    let (one, other) = (directory.path().join("one.pem"), directory.path().join("other.pem"));
    let server = server_for("127.0.0.1", &one).await;
    let wrong_name = server_for("elsewhere.example", &other).await;
    for (server, trusted) in [(&server, &other), (&wrong_name, &other)] {
        let origin = format!("https://{}", server.address);
        let outcome = call(trusted, &[("SD_PROXY_ORIGIN", &origin), ("SD_PROXY_TOR", "off")]).await;
        assert_no_tls(&outcome.failure());
        let socks = SocksStub::new(Way::Relay(server.address)).await;
        let outcome =
            call(trusted, &[("SD_PROXY_ORIGIN", &origin), ("SD_PROXY_SOCKS", &socks.address.to_string())]).await;
        assert_no_tls(&outcome.failure());
        assert!(server.seen().is_empty());
    }
}

#[tokio::test]
async fn a_server_without_tls_is_unreachable() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let origin = format!("https://{}", listener.local_addr().unwrap());
    let mut client = Client::direct(Scope::Metadata, &origin).await;
    let answering = async {
        let (mut stream, _) = listener.accept().await.unwrap();
        stream.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n").await.unwrap();
        stream
    };
    let (_stream, outcome) = tokio::join!(answering, client.call(get_sources()));
    assert_no_tls(&outcome.failure());
}

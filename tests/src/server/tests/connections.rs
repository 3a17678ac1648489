//! How connections live and end, with and without an answer.

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::*;

/// Sends text as it is and reads until the server closes.
pub(super) async fn raw(site: &Site, request: &str) -> String {
    let mut stream = TcpStream::connect(site.server.address()).await.unwrap();
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).await.unwrap();
    String::from_utf8(answer).unwrap()
}

const ROOT: &str = "GET /api/v1/ HTTP/1.1\r\nHost: x\r\n\r\n";

#[tokio::test]
async fn connections_are_kept_alive() {
    bounded(async {
        let site = Site::start(small()).await;
        for _ in 0..3 {
            let answer = site.get("/api/v1/").send().await.unwrap();
            assert!(!answer.headers().contains_key("connection"));
            answer.bytes().await.unwrap();
        }
        assert_eq!(site.control().with_log(RequestLog::connections), 1);
        let connections: Vec<_> = site.control().requests().iter().map(|r| r.connection).collect();
        assert_eq!(connections, [1, 1, 1]);
    })
    .await;
}

#[tokio::test]
async fn a_development_server_closes_after_each_answer() {
    bounded(async {
        let site = Site::start(ServerOptions { close_after_answer: true, ..small() }).await;
        let answer = raw(&site, &ROOT.repeat(2)).await;
        assert_eq!(answer.matches("HTTP/1.1 200 OK").count(), 1);
        assert!(answer.to_lowercase().contains("\r\nconnection: close\r\n"), "{answer}");
    })
    .await;
}

#[tokio::test]
async fn an_idle_connection_is_closed() {
    bounded(async {
        let idle_timeout = Some(Duration::from_millis(20));
        let site = Site::start(ServerOptions { idle_timeout, ..small() }).await;
        assert_eq!(raw(&site, "").await, "");
        // However late this request comes, the connection does not stay.
        raw(&site, ROOT).await;
        site.control().wait_for_log(|log| log.open_connections() == 0).await;
    })
    .await;
}

#[tokio::test]
async fn stopping_ends_connections_that_wait_and_those_that_hang() {
    bounded(async {
        let site = Site::start(small()).await;
        let control = site.control().clone();
        control.add_fault(Fault::new(Matching::path("/api/v1/users"), FaultAct::Hang)).unwrap();
        control.add_fault(Fault::new(Matching::path("/api/v1/"), FaultAct::HangAfter { bytes: 5 })).unwrap();
        let late = Fault::new(Matching::path("/late"), FaultAct::Pass).after_ms(3_600_000);
        control.add_fault(late).unwrap();
        let waiting = TcpStream::connect(site.server.address()).await.unwrap();
        let mut hanging = Vec::new();
        for path in ["/api/v1/users", "/api/v1/", "/late"] {
            let mut stream = TcpStream::connect(site.server.address()).await.unwrap();
            stream.write_all(format!("GET {path} HTTP/1.1\r\nHost: x\r\n\r\n").as_bytes()).await.unwrap();
            hanging.push(stream);
        }
        control.wait_for_log(|log| log.in_flight() == 3 && log.open_connections() == 4).await;
        site.server.stop().await;
        assert_eq!(control.with_log(RequestLog::open_connections), 0);
        assert_eq!(control.with_log(RequestLog::in_flight), 0);
        for mut stream in hanging.into_iter().chain([waiting]) {
            let mut rest = Vec::new();
            // Closed, one way or another.
            let _ = stream.read_to_end(&mut rest).await;
        }
    })
    .await;
}

#[tokio::test]
async fn dropping_a_server_ends_it() {
    bounded(async {
        let site = Site::start(small()).await;
        let control = site.control().clone();
        control.add_fault(Fault::new(Matching::path("/**"), FaultAct::Hang)).unwrap();
        let mut stream = TcpStream::connect(site.server.address()).await.unwrap();
        stream.write_all(ROOT.as_bytes()).await.unwrap();
        control.wait_for_log(|log| log.in_flight() == 1).await;
        drop(site);
        control.wait_for_log(|log| log.in_flight() == 0 && log.open_connections() == 0).await;
        assert!(matches!(stream.read(&mut [0]).await, Ok(0) | Err(_)));
    })
    .await;
}

#[tokio::test]
async fn an_address_in_use_is_an_error() {
    bounded(async {
        let site = Site::start(small()).await;
        let bind = site.server.address();
        let error = Server::start(ServerOptions { bind, ..small() }).await.unwrap_err();
        assert!(matches!(error, ServerError::Listen { address, .. } if address == bind));
    })
    .await;
}

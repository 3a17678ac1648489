//! Clients that are slow, broken or too many.

use tokio::io::duplex;

use super::*;
use crate::socks::session;

/// A connection as the accept loop makes it, over a pipe, so that time can be paused.
fn over_a_pipe(site: &Site) -> (tokio::io::DuplexStream, JoinSet<()>) {
    let shared = site.control().shared();
    let (client, server) = duplex(1024);
    let (cut, open) = (shared.cut(), shared.ledger.connection(usize::MAX).unwrap());
    let mut tasks = JoinSet::new();
    tasks.spawn(session::serve(server, shared, open, cut));
    (client, tasks)
}

#[tokio::test(start_paused = true)]
async fn a_handshake_ends_with_its_deadline_wherever_it_stands() {
    let site = Site::with(|options| options.handshake_deadline = Duration::from_secs(7)).await;
    let mut sent = vec![5, 1, 0];
    sent.extend_from_slice(&request(ONION, PORT));
    for end in 0..sent.len() {
        let start = tokio::time::Instant::now();
        let (mut client, mut tasks) = over_a_pipe(&site);
        client.write_all(&sent[..end]).await.unwrap();
        tasks.join_next().await.unwrap().unwrap();
        assert_eq!(start.elapsed(), Duration::from_secs(7), "{end}");
    }
    let counts = site.control().counts();
    assert_eq!((counts.too_slow, counts.open), (sent.len() as u64, 0));
}

#[tokio::test(start_paused = true)]
async fn a_client_that_sends_a_byte_at_a_time_gets_no_more_time() {
    let site = Site::with(|options| options.handshake_deadline = Duration::from_secs(7)).await;
    let (mut client, mut tasks) = over_a_pipe(&site);
    let start = tokio::time::Instant::now();
    client.write_all(&[5, 255]).await.unwrap();
    for _ in 0..20 {
        tokio::time::sleep(Duration::from_secs(1)).await;
        if client.write_all(&[1]).await.is_err() {
            break;
        }
    }
    tasks.join_next().await.unwrap().unwrap();
    assert!(start.elapsed() <= Duration::from_secs(8), "it was still taken after {:?}", start.elapsed());
    assert_eq!(site.control().counts().too_slow, 1);
}

#[tokio::test(start_paused = true)]
async fn a_rule_that_hangs_knows_no_deadline() {
    let site = Site::with(|options| options.handshake_deadline = Duration::from_secs(7)).await;
    site.control().add_fault(SocksFault::new(Act::HangAt(Step::Accepted))).unwrap();
    let (client, mut tasks) = over_a_pipe(&site);
    let day = tokio::time::timeout(Duration::from_secs(86_400), tasks.join_next()).await;
    assert!(day.is_err());
    drop(client);
    tasks.join_next().await.unwrap().unwrap();
    assert_eq!(site.ending(1).await, Ending::Faulted);
}

#[tokio::test]
async fn garbage_is_told_from_slowness_and_does_no_harm() {
    bounded(async {
        let site = Site::start().await;
        for garbage in [b"GET / HTTP/1.1\r\n\r\n".as_slice(), &[4, 1, 0, 80], &[5, 1, 9], &[5, 0], &[5, 1, 2, 9]] {
            let mut client = site.client().await;
            client.write_all(garbage).await.unwrap();
            let answer = rest(&mut client).await;
            assert!(answer.is_empty() || answer == [5, 0xFF] || answer == [5, 2], "{answer:?}");
        }
        let name_that_is_no_text = [5, 1, 0, 5, 1, 0, 3, 2, 0xC3, 0x28, 0, 80];
        let mut client = site.client().await;
        client.write_all(&name_that_is_no_text).await.unwrap();
        assert_eq!(rest(&mut client).await, [5, 0]);
        site.control().wait_for(|counts| counts.malformed == 6).await;
        drop(site.stream().await);
    })
    .await;
}

#[tokio::test]
async fn clients_that_go_early_are_forgotten() {
    bounded(async {
        let site = Site::start().await;
        for sent in [b"".as_slice(), &[5], &[5, 1, 0], &[5, 1, 0, 5, 1, 0, 3, 255]] {
            let mut client = site.client().await;
            client.write_all(sent).await.unwrap();
        }
        site.control().wait_for(|counts| counts.accepted == 4 && counts.open == 0).await;
        assert_eq!(site.control().counts().malformed, 0);
    })
    .await;
}

#[tokio::test]
async fn one_connection_too_many_is_closed_and_there_is_room_again() {
    bounded(async {
        let site = Site::with(|options| options.max_connections = 2).await;
        let first = site.stream().await;
        let _second = site.stream().await;
        let mut third = site.client().await;
        assert_eq!(rest(&mut third).await, b"");
        let counts = site.control().counts();
        assert_eq!((counts.accepted, counts.turned_away, counts.max_open), (2, 1, 2));
        drop(first);
        site.control().wait_for(|counts| counts.open == 1).await;
        drop(site.stream().await);
    })
    .await;
}

#[tokio::test]
async fn a_server_that_listens_beyond_the_loopback_does_not_start() {
    let mut options = SocksOptions::new(NameTable::new());
    options.listen = Listen::On("0.0.0.0:0".parse().unwrap());
    assert!(matches!(SocksServer::start(options), Err(SocksError::NotLoopback(_))));
}

#[tokio::test]
async fn a_listener_that_somebody_made_is_taken() {
    bounded(async {
        let made = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = made.local_addr().unwrap();
        let site = Site::with(|options| options.listen = Listen::Made(made)).await;
        assert_eq!(site.socks.address(), address);
        drop(site.stream().await);
        site.control().close_port().unwrap();
        site.control().open_port().unwrap();
        drop(site.stream().await);
    })
    .await;
}

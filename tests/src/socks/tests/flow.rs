//! Delay and rate, over pipes and in paused time: the numbers are exact.

use std::num::NonZeroU64;

use tokio::io::{DuplexStream, duplex};
use tokio::time::Instant;

use super::*;
use crate::socks::relay::relay;
use crate::socks::session;

/// A stream that is there already, from both ends, and the server that moves its bytes.
struct Stream {
    client: DuplexStream,
    server: DuplexStream,
    socks: SocksServer,
    moving: JoinSet<Ending>,
}

fn stream(shape: Shape) -> Stream {
    let mut options = SocksOptions::new(NameTable::new());
    options.shape = shape;
    let socks = SocksServer::start(options).unwrap();
    let mut moving = JoinSet::new();
    let (client, server) = another(&socks, &mut moving);
    Stream { client, server, socks, moving }
}

fn another(socks: &SocksServer, moving: &mut JoinSet<Ending>) -> (DuplexStream, DuplexStream) {
    let ((client, near), (far, server)) = (duplex(1 << 20), duplex(1 << 20));
    let shared = socks.control().shared();
    moving.spawn(async move { relay(near, far, None, &shared).await });
    (client, server)
}

fn rate(bytes: u64) -> NonZeroU64 {
    NonZeroU64::new(bytes).unwrap()
}

const DELAY: Duration = Duration::from_millis(300);

#[tokio::test(start_paused = true)]
async fn an_exchange_costs_the_delay_once_whatever_its_size() {
    let Stream { mut client, mut server, socks: _socks, moving: _moving } = stream(Shape::round_trip(DELAY));
    let mut buffer = vec![0; 400_000];
    for (asked, answered) in [(1, 1), (100, 400_000), (400_000, 100)] {
        let start = Instant::now();
        client.write_all(&buffer[..asked]).await.unwrap();
        server.read_exact(&mut buffer[..asked]).await.unwrap();
        server.write_all(&buffer[..answered]).await.unwrap();
        client.read_exact(&mut buffer[..answered]).await.unwrap();
        assert_eq!(start.elapsed(), DELAY, "{asked} bytes and {answered} back");
    }
}

#[tokio::test(start_paused = true)]
async fn what_is_sent_together_arrives_together_and_later_later() {
    let Stream { mut client, mut server, socks: _socks, moving: _moving } = stream(Shape::round_trip(DELAY));
    let start = Instant::now();
    client.write_all(b"a").await.unwrap();
    tokio::time::sleep(Duration::from_millis(100)).await;
    client.write_all(b"b").await.unwrap();
    assert_eq!((server.read_u8().await.unwrap(), start.elapsed()), (b'a', DELAY));
    assert_eq!((server.read_u8().await.unwrap(), start.elapsed()), (b'b', DELAY + Duration::from_millis(100)));
}

#[tokio::test(start_paused = true)]
async fn each_direction_has_its_own_delay() {
    let there = Way { delay: Duration::from_millis(20), rate: None };
    let back = Way { delay: Duration::from_millis(50), rate: None };
    let Stream { mut client, mut server, socks: _socks, moving: _moving } =
        stream(Shape { connect_delay: Duration::ZERO, to_server: there, to_client: back });
    let start = Instant::now();
    client.write_u8(1).await.unwrap();
    server.read_u8().await.unwrap();
    assert_eq!(start.elapsed(), there.delay);
    server.write_u8(1).await.unwrap();
    client.read_u8().await.unwrap();
    assert_eq!(start.elapsed(), there.delay + back.delay);
}

#[tokio::test(start_paused = true)]
async fn the_delay_can_be_changed_while_the_stream_is_open() {
    let Stream { mut client, mut server, socks, moving: _moving } = stream(Shape::default());
    for delay in [0, 300, 10, 0].map(Duration::from_millis) {
        socks.control().set_shape(Shape::round_trip(delay));
        assert_eq!(socks.control().shape().to_server.delay, delay);
        let start = Instant::now();
        client.write_u8(1).await.unwrap();
        server.read_u8().await.unwrap();
        assert_eq!(start.elapsed(), delay);
    }
}

#[tokio::test(start_paused = true)]
async fn the_last_bytes_are_delivered_before_the_end() {
    let Stream { mut client, mut server, socks: _socks, mut moving } = stream(Shape::round_trip(DELAY));
    client.write_all(b"bye").await.unwrap();
    drop(client);
    let mut heard = Vec::new();
    server.read_to_end(&mut heard).await.unwrap();
    assert_eq!(heard, b"bye");
    assert_eq!(moving.join_next().await.unwrap().unwrap(), Ending::Finished);
}

#[tokio::test(start_paused = true)]
async fn connecting_costs_the_delay_once_too() {
    let mut options = SocksOptions::new(NameTable::new());
    options.shape = Shape::round_trip(DELAY);
    let socks = SocksServer::start(options).unwrap();
    let shared = socks.control().shared();
    let (mut client, server) = duplex(1024);
    let (cut, open) = (shared.cut(), shared.ledger.connection(1).unwrap());
    let mut tasks = JoinSet::new();
    tasks.spawn(session::serve(server, shared, open, cut));
    let start = Instant::now();
    client.write_all(&[5, 1, 0]).await.unwrap();
    client.write_all(&request(ONION, PORT)).await.unwrap();
    let mut answers = Vec::new();
    client.read_to_end(&mut answers).await.unwrap();
    assert_eq!(answers[2..4], [5, 4]);
    assert_eq!(start.elapsed(), DELAY);
}

#[tokio::test(start_paused = true)]
async fn a_rate_is_kept_in_each_direction_and_in_small_pieces() {
    let Stream { mut client, mut server, socks, moving: _moving } = stream(Shape::default().at_rate(rate(100_000)));
    let sent = vec![7; 100_000];
    for there in [true, false] {
        let (from, to) = if there { (&mut client, &mut server) } else { (&mut server, &mut client) };
        let start = Instant::now();
        from.write_all(&sent).await.unwrap();
        let mut total = 0;
        let mut buffer = vec![0; 100_000];
        while total < sent.len() {
            let read = to.read(&mut buffer).await.unwrap();
            assert!(read <= 2_000, "{read} bytes at once");
            // A piece goes when those before it have had their time, on a timer that counts milliseconds.
            let due = Duration::from_micros(10 * total as u64);
            assert_eq!(start.elapsed().as_millis(), due.as_micros().div_ceil(1_000), "after {total} bytes");
            total += read;
        }
    }
    let counts = socks.control().counts();
    assert_eq!((counts.bytes_to_server, counts.bytes_to_client), (100_000, 100_000));
}

#[tokio::test(start_paused = true)]
async fn streams_share_the_rate() {
    let Stream { mut client, mut server, socks, mut moving } = stream(Shape::default().at_rate(rate(100_000)));
    let (mut other_client, mut other_server) = another(&socks, &mut moving);
    let sent = vec![7; 50_000];
    let start = Instant::now();
    let (mut first, mut second) = (vec![0; sent.len()], vec![0; sent.len()]);
    client.write_all(&sent).await.unwrap();
    other_client.write_all(&sent).await.unwrap();
    let ends = async {
        tokio::try_join!(server.read_exact(&mut first), other_server.read_exact(&mut second)).unwrap();
        start.elapsed()
    };
    // The last piece of the 100,000 bytes goes after the others.
    let took = ends.await;
    assert!((980..=1_000).contains(&took.as_millis()), "{took:?}");
}

#[tokio::test(start_paused = true)]
async fn the_rate_can_be_changed_while_bytes_are_under_way() {
    let Stream { mut client, mut server, socks, moving: _moving } = stream(Shape::default().at_rate(rate(1_000)));
    let start = Instant::now();
    client.write_all(&[7; 10_000]).await.unwrap();
    let mut buffer = vec![0; 10_000];
    server.read_exact(&mut buffer[..1_000]).await.unwrap();
    assert_eq!(start.elapsed(), Duration::from_millis(980));
    socks.control().set_shape(Shape::default());
    server.read_exact(&mut buffer[1_000..]).await.unwrap();
    // One piece was waiting for its turn.
    assert!(start.elapsed() <= Duration::from_millis(1_000), "{:?}", start.elapsed());
}

#[tokio::test(start_paused = true)]
async fn a_line_that_is_full_makes_its_sender_wait() {
    let Stream { mut client, mut server, socks: _socks, moving: _moving } =
        stream(Shape::round_trip(Duration::from_secs(3_600)));
    let mut sent = 0;
    let sending = async {
        let piece = vec![7; 1 << 16];
        loop {
            sent += client.write(&piece).await.unwrap();
        }
    };
    assert!(tokio::time::timeout(Duration::from_secs(60), sending).await.is_err());
    // What the two pipes hold is theirs.
    assert!(sent <= LINE_BYTES + 2 * (1 << 20), "{sent} bytes are under way");
    drop(client);
    let mut received = Vec::new();
    server.read_to_end(&mut received).await.unwrap();
    assert_eq!(received.len(), sent);
}

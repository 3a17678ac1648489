//! The bytes of a stream: two directions, each a delay line that is emptied at the rate.
//!
//! **Invariant:** a direction holds at most [`LINE_BYTES`]; when its line is full, its sender has to wait.
//!
//! **Invariant:** a limit is exact: the byte after it never reaches the other side.

use std::io;
use std::pin::pin;

use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep_until};

use super::control::Shared;
use super::faults::Direction;
use super::ledger::Ending;

/// The most bytes that are under way in one direction of a stream. With a delay, a stream moves no more than this in each
/// of it.
pub const LINE_BYTES: usize = PARCELS * PARCEL_BYTES;

/// How many reads a line holds.
const PARCELS: usize = 64;
/// How many bytes are read at once, at most.
const PARCEL_BYTES: usize = 16 * 1024;

/// Where a rule ends a stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Limit {
    pub(super) direction: Direction,
    pub(super) bytes: u64,
    pub(super) then: Then,
}

/// And how.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Then {
    Drop,
    Hang,
}

/// How a direction ended.
#[derive(Debug)]
enum End {
    /// Its sender has closed, and all that it sent has arrived.
    Closed,
    /// The next byte would be over the limit.
    Limit,
    /// Its receiver takes nothing more.
    Failed,
}

/// What was read at once, and when it is due.
#[derive(Debug)]
struct Parcel {
    due: Instant,
    bytes: Vec<u8>,
}

/// Moves bytes until one side closes or the limit is reached. As with Tor, nothing is half closed: when one side has
/// closed, what it sent is delivered, and the other side is closed.
pub(super) async fn relay<C, U>(client: C, upstream: U, limit: Option<Limit>, shared: &Shared) -> Ending
where
    C: AsyncRead + AsyncWrite,
    U: AsyncRead + AsyncWrite,
{
    let (mut from_client, mut to_client) = tokio::io::split(client);
    let (mut from_server, mut to_server) = tokio::io::split(upstream);
    let end = {
        let limit_of = |direction| limit.filter(|limit| limit.direction == direction).map(|limit| limit.bytes);
        let there = Direction::ToServer;
        let back = Direction::ToClient;
        tokio::select! {
            end = pump(&mut from_client, &mut to_server, there, limit_of(there), shared) => end,
            end = pump(&mut from_server, &mut to_client, back, limit_of(back), shared) => end,
        }
    };
    let ending = match (end, limit.map(|limit| limit.then)) {
        (End::Closed, _) => Ending::Finished,
        (End::Failed, _) => Ending::Broken,
        (End::Limit, Some(Then::Hang)) => {
            hang(&mut from_client, shared).await;
            Ending::Faulted
        }
        (End::Limit, Some(Then::Drop) | None) => Ending::Faulted,
    };
    // Who is gone already needs no farewell.
    let _gone = to_client.shutdown().await;
    let _gone = to_server.shutdown().await;
    ending
}

/// Holds a connection until the client goes. What it still sends is thrown away: only so its end is seen.
pub(super) async fn hang<R: AsyncRead + Unpin>(client: &mut R, shared: &Shared) {
    let _hanging = shared.ledger.hanging();
    let mut thrown_away = vec![0; PARCEL_BYTES];
    while client.read(&mut thrown_away).await.is_ok_and(|read| read > 0) {}
}

/// One direction.
async fn pump<R, W>(reader: R, writer: W, direction: Direction, limit: Option<u64>, shared: &Shared) -> End
where
    R: AsyncRead + Unpin,
    W: AsyncWrite + Unpin,
{
    let (line, due) = mpsc::channel(PARCELS);
    let mut emptying = pin!(empty(due, writer, direction, limit, shared));
    tokio::select! {
        end = emptying.as_mut() => return end,
        () = fill(reader, line, direction, shared) => {}
    }
    emptying.await
}

/// Reads to the end of what is sent; a failure is an end too.
async fn fill<R: AsyncRead + Unpin>(mut reader: R, line: mpsc::Sender<Parcel>, direction: Direction, shared: &Shared) {
    let mut buffer = vec![0; PARCEL_BYTES];
    // The room comes first, so that nothing is held beside the line.
    while let Ok(room) = line.reserve().await {
        let read = reader.read(&mut buffer).await.unwrap_or(0);
        let Some(bytes) = buffer.get(..read).filter(|bytes| !bytes.is_empty()) else { return };
        let now = Instant::now();
        let due = now.checked_add(shared.shape().way(direction).delay).unwrap_or(now);
        room.send(Parcel { due, bytes: bytes.to_vec() });
    }
}

async fn empty<W: AsyncWrite + Unpin>(
    mut line: mpsc::Receiver<Parcel>,
    mut writer: W,
    direction: Direction,
    limit: Option<u64>,
    shared: &Shared,
) -> End {
    let mut left = limit;
    while let Some(Parcel { due, bytes }) = line.recv().await {
        wait_until(due).await;
        let mut rest = bytes.as_slice();
        while !rest.is_empty() {
            if left == Some(0) {
                // What moved has arrived before the end of it is seen.
                let _gone = writer.flush().await;
                return End::Limit;
            }
            let wanted = u64::try_from(rest.len()).unwrap_or(u64::MAX).min(left.unwrap_or(u64::MAX));
            let (allowed, from) = shared.next_piece(direction, wanted);
            if let Some(from) = from {
                wait_until(from).await;
            }
            let (piece, more) = rest.split_at(usize::try_from(allowed).unwrap_or(rest.len()).min(rest.len()));
            if write(&mut writer, piece, direction, shared).await.is_err() {
                return End::Failed;
            }
            left = left.map(|left| left.saturating_sub(allowed));
            rest = more;
        }
    }
    match writer.flush().await {
        Ok(()) => End::Closed,
        Err(_) => End::Failed,
    }
}

/// Writes all of it and counts what was written.
async fn write<W: AsyncWrite + Unpin>(
    writer: &mut W,
    mut piece: &[u8],
    direction: Direction,
    shared: &Shared,
) -> io::Result<()> {
    while !piece.is_empty() {
        let written = writer.write(piece).await?;
        let (_there, rest) = piece.split_at_checked(written).filter(|_| written > 0).ok_or(io::ErrorKind::WriteZero)?;
        shared.ledger.moved(direction, u64::try_from(written).unwrap_or(u64::MAX));
        piece = rest;
    }
    writer.flush().await
}

/// Sleeps only for what lies ahead: a sleep for the past costs a turn of the timer.
async fn wait_until(at: Instant) {
    if at > Instant::now() {
        sleep_until(at).await;
    }
}

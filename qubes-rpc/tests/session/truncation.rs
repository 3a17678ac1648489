//! S6: an answer that is cut anywhere is incomplete.

use std::time::Duration;

use protocol::Scope;
use protocol::frame::frame_bytes;
use protocol::handshake::encode_hello;
use qubes_rpc::connection::{Break, CallFailure, Connection, HelloError};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, duplex, split};

use crate::support::*;

/// What a proxy sends in a session with two calls, and where in it the handshake and each answer end.
struct Recording {
    bytes: Vec<u8>,
    welcome: usize,
    ends: [usize; 2],
}

async fn record() -> Recording {
    let (serving, end) = Serving::start(Scope::Metadata, &Scripted::answering(), WIDE);
    let (mut reader, mut client) = split(end);
    let mut bytes = Vec::new();
    client.write_all(&frame_bytes(&encode_hello(&hello(Scope::Metadata)).unwrap()).unwrap()).await.unwrap();
    let mut until = Vec::new();
    for id in 0..=2 {
        // One answer after the other, so that the recording is the same each time. Everybody else waits by then.
        if id > 0 {
            client.write_all(&request(id, users("x"))).await.unwrap();
        }
        let mut chunk = [0; 4096];
        while let Ok(count) = tokio::time::timeout(Duration::from_secs(1), reader.read(&mut chunk)).await {
            bytes.extend_from_slice(&chunk[..count.unwrap()]);
        }
        until.push(bytes.len());
    }
    client.shutdown().await.unwrap();
    serving.ended().await.unwrap();
    assert_eq!(reader.read_to_end(&mut bytes).await.unwrap(), 0, "after the last end nothing comes");
    Recording { bytes, welcome: until[0], ends: [until[1], until[2]] }
}

/// Plays the recording up to `cut` to a client that makes the two calls.
async fn play(recording: &Recording, cut: usize) -> Result<[Result<Vec<String>, CallFailure>; 2], HelloError> {
    let (ours, theirs) = duplex(WIDE);
    let (reader, writer) = split(theirs);
    let (head, tail) = recording.bytes[..cut].split_at(cut.min(recording.welcome));
    let proxy = async move {
        let mut proxy = Raw::new(ours);
        proxy.reader.next_payload().await.unwrap().unwrap();
        proxy.send(head).await;
        if head.len() == recording.welcome {
            assert_eq!((proxy.called().await.0, proxy.called().await.0), (1, 2));
            proxy.send(tail).await;
        }
        drop(proxy);
    };
    let client = async {
        let connection = Connection::open(reader, writer, &hello(Scope::Metadata), MINUTE).await?;
        let (first, second) = (connection.call(users("x"), MINUTE).await, connection.call(users("x"), MINUTE).await);
        Ok([read(first.unwrap()).await, read(second.unwrap()).await])
    };
    soon(async { tokio::join!(proxy, client).1 }).await
}

#[tokio::test(start_paused = true)]
async fn s6_an_answer_cut_at_any_byte_is_incomplete() {
    let recording = record().await;
    assert!(0 < recording.welcome && recording.welcome < recording.ends[0] && recording.ends[0] < recording.ends[1]);
    for cut in 0..=recording.bytes.len() {
        let answers = match play(&recording, cut).await {
            Ok(answers) => answers,
            Err(HelloError::Ended) if cut == 0 => continue,
            Err(HelloError::Channel(_)) if (1..recording.welcome).contains(&cut) => continue,
            Err(error) => panic!("cut at {cut}: {error}"),
        };
        assert!(cut >= recording.welcome, "cut at {cut}: half a welcome was taken");
        for (answer, end) in answers.into_iter().zip(recording.ends) {
            match answer {
                Ok(read) => {
                    assert!(cut >= end, "cut at {cut}: half an answer was taken");
                    assert_eq!(read, names("x", 0..3));
                }
                Err(CallFailure::Incomplete(Break::Ended | Break::Stream)) => assert!(cut < end, "cut at {cut}"),
                Err(failure) => panic!("cut at {cut}: {failure}"),
            }
        }
    }
}

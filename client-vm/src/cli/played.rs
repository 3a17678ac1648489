//! A daemon that a test plays.

use control::{Event, Failure, FailureKind, FromDaemon, Reply, Request, ToDaemon, greeting};
use protocol::frame::{FrameDecoder, encode_frame, frame_bytes};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{UnixListener, UnixStream};

/// What a daemon says to a request: what happens meanwhile, the answer, what happens then.
pub(super) type Said = (Vec<Event>, Result<Vec<Reply>, FailureKind>, Vec<Event>);

pub(super) fn says(replies: Vec<Reply>) -> Said {
    (Vec::new(), Ok(replies), Vec::new())
}

pub(super) fn refuses(kind: FailureKind) -> Said {
    (Vec::new(), Err(kind), Vec::new())
}

/// Plays the daemon, one connection after the other. To what it says nothing to, it hangs up.
pub(super) async fn play(listener: UnixListener, mut script: impl FnMut(Request) -> Option<Said>) {
    loop {
        let (mut stream, _) = listener.accept().await.unwrap();
        serve(&mut stream, &mut script).await;
    }
}

async fn serve(stream: &mut UnixStream, script: &mut impl FnMut(Request) -> Option<Said>) {
    let mut decoder = FrameDecoder::new();
    while decoder.next_payload().unwrap().is_none() {
        if !fill(stream, &mut decoder).await {
            return;
        }
    }
    stream.write_all(&frame_bytes(&greeting::greeting()).unwrap()).await.unwrap();
    loop {
        let Some(ToDaemon { id, request }) = decoder.next_message().unwrap() else {
            if !fill(stream, &mut decoder).await {
                return;
            }
            continue;
        };
        let Some((before, answer, after)) = script(request) else { return };
        let (replies, result) = match answer {
            Ok(replies) => (replies, Ok(())),
            Err(kind) => (Vec::new(), Err(Failure { kind, message: "no".to_owned() })),
        };
        let messages = before
            .into_iter()
            .map(FromDaemon::Event)
            .chain(replies.into_iter().map(|reply| FromDaemon::Item { id, reply }))
            .chain([FromDaemon::Done { id, result }])
            .chain(after.into_iter().map(FromDaemon::Event));
        for message in messages {
            stream.write_all(&encode_frame(&message).unwrap()).await.unwrap();
        }
    }
}

/// Whether the client is still there.
async fn fill(stream: &mut UnixStream, decoder: &mut FrameDecoder) -> bool {
    let mut chunk = [0; 4096];
    let count = stream.read(&mut chunk).await.unwrap();
    decoder.feed(&chunk[..count]);
    count > 0
}

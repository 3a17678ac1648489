//! The life of one connection: the handshake, the way to the server behind the name, and the bytes.
//!
//! **Invariant:** whatever the client sends or does not send, the handshake ends with its deadline, unless a rule holds
//! the connection, and then with the client, the cut or the server.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::time::{Instant, timeout, timeout_at};
use tokio_util::sync::CancellationToken;

use super::control::Shared;
use super::faults::{Act, Step};
use super::handshake::{self, HandshakeError, Method, Reply, Request, Target};
use super::ledger::{Ending, OpenConnection};
use super::names::Refusal;
use super::relay::{self, Limit, Then};

/// Serves a connection to its end, or until it is cut.
pub(super) async fn serve<S>(client: S, shared: Arc<Shared>, open: OpenConnection, cut: CancellationToken)
where
    S: AsyncRead + AsyncWrite + Unpin + Send,
{
    let ending = tokio::select! {
        ending = converse(client, &shared, &open) => ending,
        () = cut.cancelled() => Ending::Cut,
    };
    open.ended(ending);
}

async fn converse<S: AsyncRead + AsyncWrite + Unpin>(mut client: S, shared: &Shared, open: &OpenConnection) -> Ending {
    match establish(&mut client, shared, open).await {
        Ok((upstream, limit)) => relay::relay(client, upstream, limit, shared).await,
        Err(ending) => {
            // Whoever reads gets what was said, and then the end.
            let _gone_already = client.shutdown().await;
            ending
        }
    }
}

/// Everything until the stream is there.
async fn establish<S: AsyncRead + AsyncWrite + Unpin>(
    client: &mut S,
    shared: &Shared,
    open: &OpenConnection,
) -> Result<(TcpStream, Option<Limit>), Ending> {
    let rule = shared.faults().take();
    let early = acting(rule, open);
    let target = match ask(client, early, shared, open).await? {
        Ok(target) => target,
        Err(reason) => return refuse(reason, client, shared, open).await,
    };
    let act = match (early, &target) {
        (None, Target::Name(name, _)) => {
            let rule = shared.faults().take_for(name);
            acting(rule, open)
        }
        (early, _) => early,
    };
    reach(Step::Requested, act, client, shared).await?;

    let connect_delay = shared.shape().connect_delay;
    if !connect_delay.is_zero() {
        // Even a sleep of nothing costs a turn of the timer.
        tokio::time::sleep(connect_delay).await;
    }
    if let Some(Act::Reply(reply)) = act {
        handshake::write_reply(client, reply).await.map_err(|_| Ending::Broken)?;
        return Err(Ending::Faulted);
    }
    let (upstream, from) = match connect(&target, shared).await {
        Ok(connected) => connected,
        Err(reason) => return refuse(reason, client, shared, open).await,
    };
    open.established(from);
    handshake::write_reply(client, Reply::SUCCEEDED).await.map_err(|_| Ending::Broken)?;
    reach(Step::Established, act, client, shared).await?;
    Ok((upstream, act.and_then(limit)))
}

/// What the rule does that was taken, if one was.
fn acting(rule: Option<(u64, Act)>, open: &OpenConnection) -> Option<Act> {
    let (id, act) = rule?;
    open.faulted(id);
    Some(act)
}

/// The handshake, as far as the client's request.
async fn ask<S: AsyncRead + AsyncWrite + Unpin>(
    client: &mut S,
    act: Option<Act>,
    shared: &Shared,
    open: &OpenConnection,
) -> Result<Result<Target, Refusal>, Ending> {
    let now = Instant::now();
    let deadline = now.checked_add(shared.handshake_deadline).unwrap_or(now);
    reach(Step::Accepted, act, client, shared).await?;
    if within(deadline, handshake::choose_method(client)).await? == Method::WithPassword {
        open.with_password();
    }
    reach(Step::MethodChosen, act, client, shared).await?;
    Ok(match within(deadline, handshake::read_request(client)).await? {
        Request::Connect(target) => {
            open.asked(target.clone());
            Ok(target)
        }
        Request::OtherCommand(target) => {
            open.asked(target);
            Err(Refusal::Command)
        }
        Request::UnknownAddressType => Err(Refusal::AddressType),
    })
}

async fn within<T>(deadline: Instant, step: impl Future<Output = Result<T, HandshakeError>>) -> Result<T, Ending> {
    match timeout_at(deadline, step).await {
        Ok(Ok(done)) => Ok(done),
        Ok(Err(HandshakeError::Io(_))) => Err(Ending::Broken),
        Ok(Err(HandshakeError::Malformed(reason))) => {
            tracing::debug!(reason, "a client does not speak SOCKS 5");
            Err(Ending::Malformed)
        }
        Err(_) => Err(Ending::TooSlow),
    }
}

/// Does what a rule does at this step, if it does anything there.
async fn reach<S: AsyncRead + Unpin>(
    step: Step,
    act: Option<Act>,
    client: &mut S,
    shared: &Shared,
) -> Result<(), Ending> {
    match act {
        Some(Act::CloseAt(at)) if at == step => Err(Ending::Faulted),
        Some(Act::HangAt(at)) if at == step => {
            relay::hang(client, shared).await;
            Err(Ending::Faulted)
        }
        _elsewhere => Ok(()),
    }
}

/// Connects to where the table says.
async fn connect(target: &Target, shared: &Shared) -> Result<(TcpStream, SocketAddr), Refusal> {
    let address = shared.names().look_up(target)?;
    let connecting = async {
        let upstream = TcpStream::connect(address).await?;
        upstream.set_nodelay(true)?;
        let from = upstream.local_addr()?;
        io::Result::Ok((upstream, from))
    };
    let connected = timeout(shared.handshake_deadline, connecting).await;
    connected.map_err(|_| Refusal::TargetDown)?.map_err(|_| Refusal::TargetDown)
}

async fn refuse<S: AsyncWrite + Unpin, T>(
    reason: Refusal,
    client: &mut S,
    shared: &Shared,
    open: &OpenConnection,
) -> Result<T, Ending> {
    open.refused(reason);
    handshake::write_reply(client, reason.reply(shared.unknown)).await.map_err(|_| Ending::Broken)?;
    Err(Ending::Refused)
}

fn limit(act: Act) -> Option<Limit> {
    match act {
        Act::DropAfter { direction, bytes } => Some(Limit { direction, bytes, then: Then::Drop }),
        Act::HangAfter { direction, bytes } => Some(Limit { direction, bytes, then: Then::Hang }),
        Act::Pass | Act::CloseAt(_) | Act::HangAt(_) | Act::Reply(_) => None,
    }
}

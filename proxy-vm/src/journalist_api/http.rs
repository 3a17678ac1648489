//! Version 1 of the Journalist API over HTTP.
//!
//! **Invariant:** only the configured origin is connected to. Redirects are not followed, there are no cookies, and proxy
//! variables in the environment are ignored.
//!
//! **Invariant:** nothing is sent twice. A request on a kept connection that the server had closed is sent on a new one only
//! where none of it was written to the first.
//!
//! **Invariant:** the bounds nest: connecting is bounded by [`Limits::connect`], the wait for an answer's head by
//! [`Limits::first_byte`], which is longer, a pause in the body by [`Limits::idle`], and everything by the call's own deadline,
//! which whoever performs the call keeps. None of them runs while an answer waits for a client that is slow to take it, but
//! the deadline.
//!
//! **Invariant:** for the head of a list the server has what the call's deadline allows. It makes a list whole before it sends
//! the first byte, which takes the longer the more there is, and only the client knows how much there is.

mod conversation;
mod download;
mod probe;

use std::net::SocketAddr;
use std::time::Duration;

use bytes::Bytes;
use protocol::value::{ReplyId, Size, SourceId, SubmissionId, Token};
use protocol::{ApiLevel, CallError, Field, Items, Journalist, Reply, SeenItems, SignedIn, Source, Stage, Submission};
use reqwest::header::{ACCEPT, AUTHORIZATION, CONTENT_LENGTH, CONTENT_TYPE, HeaderValue, RANGE};
use reqwest::{Client, Method, Proxy, Response, StatusCode};
use tokio::time::Instant;
use zeroize::Zeroizing;

use super::connecting::{NoFirstByte, WatchConnector, watched};
use super::endpoint::Endpoint;
use super::list::{Batches, ListSplitter};
use super::sanitize::{ServerRecord, signed_in, stored_reply};
use super::{Conversation, Credentials, JournalistApi, OutgoingReply, failure, socks, wire};
use crate::config::{Config, Origin, Route};
use crate::outlet::Outlet;

pub(super) use download::HeadError;

/// How much of a body is taken apart before what it held is sent on, in bytes.
const PIECE: usize = 16 * 1024;
/// How long a connection is kept that nobody uses. A SecureDrop server's Apache closes one after 5 s: a request that meets
/// its end on the way gets no answer, and whether it was carried out nobody knows.
const KEEP_ALIVE: Duration = Duration::from_secs(3);
/// Room for the body of a login, so that it is never moved: its values have at most 1,538 bytes, in JSON at most twice as
/// many, since they hold no control characters.
const LOGIN_BODY: usize = 8 * 1024;
/// The most room that is made beforehand for an answer that is no list, in bytes: as much as one may have.
const SMALL_BODY: u64 = 64 * 1024;
const JSON: HeaderValue = HeaderValue::from_static("application/json");
const ANYTHING: HeaderValue = HeaderValue::from_static("*/*");

/// What one call may take. The total time is the call's deadline.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// How long connecting may take, with Tor's way and TLS.
    pub connect: Duration,
    /// How long the server may take from the request to the head of its answer. With 1,000 sources a server was seen to
    /// need 90 s, which must do; but on a circuit that has died nothing comes at all. A list may take longer: all that is
    /// left of the call's deadline, but for [`Limits::idle`].
    pub first_byte: Duration,
    /// How long a body may pause. Of a list's deadline so much is kept for its body.
    pub idle: Duration,
    /// The most bytes of a list, after decompression.
    pub list_bytes: u64,
    /// The most bytes of an answer that is no list.
    pub small_bytes: u64,
    /// The most bytes of one record's JSON; one over it is unreadable.
    pub record_bytes: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            connect: Duration::from_secs(30),
            first_byte: Duration::from_secs(180),
            idle: Duration::from_secs(60),
            list_bytes: 256 * 1024 * 1024,
            small_bytes: SMALL_BODY,
            record_bytes: 256 * 1024,
        }
    }
}

impl Limits {
    /// How long the server may take for the head of its answer, if so much is `left` of the call's deadline.
    fn first_byte_of(&self, endpoint: Endpoint, left: Duration) -> Duration {
        if endpoint.is_list() { self.first_byte.max(left.saturating_sub(self.idle)) } else { self.first_byte }
    }
}

/// The HTTP client could not be built.
#[derive(Debug, thiserror::Error)]
#[error("could not set up the HTTP client; an https origin needs the system's CA certificates")]
pub struct BuildError;

/// The Journalist API over HTTP.
#[derive(Debug)]
pub struct HttpApi {
    client: Client,
    /// The same, which takes bodies as they are: in the other one nothing says any more whether a body was compressed.
    downloads: Client,
    origin: Origin,
    /// Where the SOCKS server is, if it goes through one.
    socks: Option<SocketAddr>,
    limits: Limits,
}

impl HttpApi {
    /// Prepares to speak to the configured server. Connects to nothing yet.
    ///
    /// # Errors
    /// [`BuildError`], among others when the origin is `https` and the system has no CA certificates.
    pub fn try_new(config: &Config, limits: Limits) -> Result<Self, BuildError> {
        // Fails only where another one is the default already, which does as well.
        let _already_there = rustls::crypto::ring::default_provider().install_default();
        let client = Self::client(config, &limits, Compression::Undone)?;
        let downloads = Self::client(config, &limits, Compression::NotAskedFor)?;
        let socks = match config.route {
            Route::Tor { socks } => Some(socks),
            Route::Direct => None,
        };
        Ok(Self { client, downloads, origin: config.origin.clone(), socks, limits })
    }

    fn client(config: &Config, limits: &Limits, compression: Compression) -> Result<Client, BuildError> {
        let mut builder = Client::builder()
            .gzip(compression == Compression::Undone)
            .no_proxy()
            .redirect(reqwest::redirect::Policy::none())
            .retry(reqwest::retry::never())
            .referer(false)
            .http1_only()
            .pool_idle_timeout(KEEP_ALIVE)
            .connect_timeout(limits.connect)
            .connector_layer(WatchConnector);
        if let Route::Tor { socks } = config.route {
            // The `h` leaves names to the SOCKS server: they are never looked up here.
            builder = builder.proxy(Proxy::all(format!("socks5h://{socks}")).map_err(|_| BuildError)?);
        }
        if !config.origin.is_https() {
            // Certificates are loaded only for who needs them.
            builder = builder.tls_certs_only([]);
        }
        builder.build().map_err(|_| BuildError)
    }

    /// Sends a request and waits for the head of its answer, whose status must be the one of success.
    async fn send(
        &self,
        endpoint: Endpoint,
        token: Option<&Token>,
        body: Option<Bytes>,
        outlet: &mut Outlet<'_>,
    ) -> Result<Answer, CallError> {
        let asked = Instant::now();
        let request_id = format!("req-{}", outlet.next_request());
        let (client, accept) = match endpoint.downloads_from() {
            Some(_) => (&self.downloads, ANYTHING),
            None => (&self.client, JSON),
        };
        let mut request = client
            .request(endpoint.method(), self.origin.at(&endpoint.path()))
            .header(ACCEPT, accept)
            .header("x-request-id", &request_id);
        if let Some(token) = token {
            request = request.header(AUTHORIZATION, authorization(token)?);
        }
        if endpoint == Endpoint::Token {
            // Asks for hints about version 2, which tell that the server speaks it.
            request = request.header("prefer", "securedrop=4");
        }
        let range = endpoint.range();
        if let Some(range) = &range {
            request = request.header(RANGE, range);
        }
        if let Some(body) = body {
            request = request.header(CONTENT_TYPE, JSON).body(body);
        } else if endpoint.method() == Method::POST {
            // A POST without a body says so.
            request = request.header(CONTENT_LENGTH, HeaderValue::from_static("0"));
        }
        let sent = watched(request.send(), self.limits.first_byte_of(endpoint, outlet.left()), outlet).await;
        let sent = match sent {
            Ok(Ok(response)) => Ok(response),
            Ok(Err(error)) => {
                let known = failure::sending(&error);
                Err(if failure::is_unknown_to_socks(&error) { self.look_at_socks(known, outlet).await } else { known })
            }
            Err(NoFirstByte) => Err(failure::no_first_byte()),
        };
        let elapsed_ms = milliseconds(asked);
        match sent {
            Ok(response) => {
                let status = response.status();
                tracing::debug!(
                    endpoint = endpoint.name(),
                    request_id,
                    status = status.as_u16(),
                    elapsed_ms,
                    "answered"
                );
                if !endpoint.succeeds_with(status) {
                    tracing::warn!(
                        endpoint = endpoint.name(),
                        request_id,
                        status = status.as_u16(),
                        elapsed_ms,
                        "not the status of success"
                    );
                    if status == StatusCode::RANGE_NOT_SATISFIABLE && range.is_some() {
                        return Err(failure::no_such_range());
                    }
                    return Err(failure::status(status, response.headers()));
                }
                outlet.reached(Stage::Body);
                Ok(Answer { response, idle: self.limits.idle, left: 0, bytes: 0, endpoint, request_id, asked })
            }
            Err(error) => {
                let (kind, stage) = (error.kind.name(), error.stage.name());
                tracing::warn!(endpoint = endpoint.name(), request_id, kind, stage, elapsed_ms, "no answer");
                Err(error)
            }
        }
    }

    /// What the SOCKS server means, which answered what the HTTP client does not know; `known` where it says nothing more. Takes
    /// no longer than connecting may, and ends before the call's deadline.
    async fn look_at_socks(&self, known: CallError, outlet: &mut Outlet<'_>) -> CallError {
        let Some(socks) = self.socks else { return known };
        outlet.reached(Stage::Connect);
        let bound = self.limits.connect.min(outlet.left() / 2);
        match tokio::time::timeout(bound, socks::look(socks, &self.origin)).await {
            Ok(Ok(found)) => failure::socks_found(found),
            Ok(Err(_)) | Err(_) => known,
        }
    }

    /// Fetches a list and passes it on as it arrives.
    async fn list<T: ServerRecord>(
        &self,
        endpoint: Endpoint,
        token: &Token,
        outlet: &mut Outlet<'_>,
        check: impl Fn(&T) -> Result<(), Field> + Send + Sync,
    ) -> Result<(), CallError> {
        let mut answer = self.send(endpoint, Some(token), None, outlet).await?.capped(self.limits.list_bytes);
        outlet.begin().await?;
        let mut splitter = ListSplitter::new(T::KEY, self.limits.record_bytes);
        let mut batches = Batches::<T>::new();
        while let Some(chunk) = answer.chunk().await? {
            for piece in chunk.chunks(PIECE) {
                splitter.feed(piece, |json| batches.add(json, &check)).map_err(failure::list)?;
                while let Some(batch) = batches.next() {
                    outlet.items(T::items(batch)).await?;
                }
            }
        }
        splitter.finish().map_err(failure::list)?;
        batches.close();
        while let Some(batch) = batches.next() {
            outlet.items(T::items(batch)).await?;
        }
        answer.log_end(batches.records, batches.unreadable);
        Ok(())
    }

    /// Makes a request that changes something on the server, and whose answer says nothing but that.
    async fn act(
        &self,
        endpoint: Endpoint,
        token: &Token,
        body: Option<Bytes>,
        outlet: &mut Outlet<'_>,
    ) -> Result<(), CallError> {
        let answer = self.send(endpoint, Some(token), body, outlet).await?;
        outlet.begin().await?;
        answer.capped(self.limits.small_bytes).drain(outlet.left()).await;
        Ok(())
    }

    async fn sign_in(&self, credentials: &Credentials, outlet: &mut Outlet<'_>) -> Result<SignedIn, CallError> {
        let mut body = Zeroizing::new(Vec::with_capacity(LOGIN_BODY));
        let login = wire::LoginRequest {
            username: credentials.username.as_str(),
            passphrase: credentials.passphrase.expose(),
            one_time_code: credentials.one_time_code.expose(),
        };
        serde_json::to_writer(&mut *body, &login).map_err(|_| failure::request("the login could not be written"))?;
        let answer = self.send(Endpoint::Token, None, Some(Bytes::from_owner(body)), outlet).await?;
        let body = Zeroizing::new(answer.capped(self.limits.small_bytes).read().await?);
        signed_in(&body).ok_or_else(failure::not_understood)
    }
}

impl JournalistApi for HttpApi {
    const SPEAKS: ApiLevel = ApiLevel::V1;

    async fn probe(&self, outlet: &mut Outlet<'_>) -> Result<(), CallError> {
        self.look(outlet).await
    }

    async fn login(&self, credentials: &Credentials, outlet: &mut Outlet<'_>) -> Result<(), CallError> {
        let signed_in = self.sign_in(credentials, outlet).await.map_err(failure::login)?;
        outlet.begin().await?;
        outlet.items(Items::SignedIn(signed_in)).await
    }

    async fn logout(&self, token: &Token, outlet: &mut Outlet<'_>) -> Result<(), CallError> {
        self.act(Endpoint::Logout, token, None, outlet).await
    }

    async fn get_users(&self, token: &Token, outlet: &mut Outlet<'_>) -> Result<(), CallError> {
        self.list::<Journalist>(Endpoint::Users, token, outlet, |_| Ok(())).await
    }

    async fn get_sources(&self, token: &Token, outlet: &mut Outlet<'_>) -> Result<(), CallError> {
        self.list::<Source>(Endpoint::Sources, token, outlet, |_| Ok(())).await
    }

    async fn get_submissions(
        &self,
        token: &Token,
        source: Option<SourceId>,
        outlet: &mut Outlet<'_>,
    ) -> Result<(), CallError> {
        let endpoint = source.map_or(Endpoint::Submissions, Endpoint::SourceSubmissions);
        // The server does not check that an item is the source's in whose name it is asked for.
        let of_source = move |submission: &Submission| match source {
            Some(source) if source != submission.source => Err(Field::Source),
            Some(_) | None => Ok(()),
        };
        self.list(endpoint, token, outlet, of_source).await
    }

    async fn get_all_replies(&self, token: &Token, outlet: &mut Outlet<'_>) -> Result<(), CallError> {
        self.list::<Reply>(Endpoint::Replies, token, outlet, |_| Ok(())).await
    }

    async fn send_reply(&self, token: &Token, reply: &OutgoingReply, outlet: &mut Outlet<'_>) -> Result<(), CallError> {
        let body = wire::ReplyRequest { reply: reply.message.as_str(), uuid: reply.id };
        let body = serde_json::to_vec(&body).map_err(|_| failure::request("the reply could not be written"))?;
        let answer = self.send(Endpoint::SendReply(reply.source), Some(token), Some(body.into()), outlet).await?;
        let body = answer.capped(self.limits.small_bytes).read().await.map_err(failure::stored_reply)?;
        let stored = stored_reply(&body).ok_or_else(failure::not_understood)?;
        if stored.reply != reply.id {
            return Err(failure::other_reply_id());
        }
        outlet.begin().await?;
        outlet.items(Items::Stored(stored)).await
    }

    async fn star(&self, token: &Token, source: SourceId, outlet: &mut Outlet<'_>) -> Result<(), CallError> {
        self.act(Endpoint::AddStar(source), token, None, outlet).await
    }

    async fn unstar(&self, token: &Token, source: SourceId, outlet: &mut Outlet<'_>) -> Result<(), CallError> {
        self.act(Endpoint::RemoveStar(source), token, None, outlet).await
    }

    async fn mark_seen(&self, token: &Token, items: &SeenItems, outlet: &mut Outlet<'_>) -> Result<(), CallError> {
        let seen = wire::SeenRequest {
            files: items.files.as_slice(),
            messages: items.messages.as_slice(),
            replies: items.replies.as_slice(),
        };
        if seen.files.is_empty() && seen.messages.is_empty() && seen.replies.is_empty() {
            return Err(failure::nothing_to_mark());
        }
        let body = serde_json::to_vec(&seen).map_err(|_| failure::request("the marks could not be written"))?;
        self.act(Endpoint::Seen, token, Some(body.into()), outlet).await
    }

    async fn delete_source(&self, token: &Token, source: SourceId, outlet: &mut Outlet<'_>) -> Result<(), CallError> {
        self.act(Endpoint::DeleteSource(source), token, None, outlet).await
    }

    async fn delete_conversation(
        &self,
        token: &Token,
        conversation: &Conversation,
        outlet: &mut Outlet<'_>,
    ) -> Result<(), CallError> {
        self.delete_items(token, conversation, outlet).await
    }

    async fn delete_submission(
        &self,
        token: &Token,
        source: SourceId,
        submission: SubmissionId,
        outlet: &mut Outlet<'_>,
    ) -> Result<(), CallError> {
        self.act(Endpoint::DeleteSubmission(source, submission), token, None, outlet).await
    }

    async fn delete_reply(
        &self,
        token: &Token,
        source: SourceId,
        reply: ReplyId,
        outlet: &mut Outlet<'_>,
    ) -> Result<(), CallError> {
        self.act(Endpoint::DeleteReply(source, reply), token, None, outlet).await
    }

    async fn download_submission(
        &self,
        token: &Token,
        source: SourceId,
        submission: SubmissionId,
        from: Size,
        outlet: &mut Outlet<'_>,
    ) -> Result<(), CallError> {
        self.download(Endpoint::DownloadSubmission(source, submission, from), token, from, outlet).await
    }

    async fn download_reply(
        &self,
        token: &Token,
        source: SourceId,
        reply: ReplyId,
        from: Size,
        outlet: &mut Outlet<'_>,
    ) -> Result<(), CallError> {
        self.download(Endpoint::DownloadReply(source, reply, from), token, from, outlet).await
    }
}

/// What is done about compressed bodies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Compression {
    /// They are asked for, and decompressed.
    Undone,
    /// They are not asked for, and would be seen as they are.
    NotAskedFor,
}

/// The body of an answer that says success, as it comes.
#[derive(Debug)]
struct Answer {
    response: Response,
    idle: Duration,
    left: u64,
    bytes: u64,
    endpoint: Endpoint,
    request_id: String,
    asked: Instant,
}

impl Answer {
    /// The same, of which at most `cap` bytes are taken, after decompression.
    fn capped(mut self, cap: u64) -> Self {
        self.left = cap;
        self
    }

    /// The next bytes; `None` at the end.
    async fn chunk(&mut self) -> Result<Option<Bytes>, CallError> {
        match tokio::time::timeout(self.idle, self.response.chunk()).await {
            Ok(chunk) => self.taken(chunk),
            Err(_) => Err(failure::idle()),
        }
    }

    /// Counts what came.
    fn taken(&mut self, chunk: reqwest::Result<Option<Bytes>>) -> Result<Option<Bytes>, CallError> {
        let chunk = chunk.map_err(|_| failure::cut_short())?;
        if let Some(chunk) = &chunk {
            let length = u64::try_from(chunk.len()).unwrap_or(u64::MAX);
            self.left = self.left.checked_sub(length).ok_or_else(failure::too_large)?;
            self.bytes = self.bytes.saturating_add(length);
        }
        Ok(chunk)
    }

    /// All of it, in memory that has room for the cap from the beginning: a login's answer has the token in it, and a body that
    /// grew would leave it behind.
    async fn read(mut self) -> Result<Vec<u8>, CallError> {
        let mut body = Vec::with_capacity(usize::try_from(self.left.min(SMALL_BODY)).unwrap_or_default());
        while let Some(chunk) = self.chunk().await? {
            body.extend_from_slice(&chunk);
        }
        self.log_end(0, 0);
        Ok(body)
    }

    /// Reads what comes and throws it away, so that the connection can be used again.
    ///
    /// For a request that changes something: the status has said that it is done. A body that is cut, stops or is too large
    /// takes nothing of that back, and a call that failed for it would be made once more for nothing. For the same reason all
    /// of the body has the time of one pause and no more, and at most half of what is `left` of the call's deadline: one that
    /// drips would make the deadline run out, and of a call that ran out of time nobody knows that it is done.
    async fn drain(self, left: Duration) {
        let (endpoint, request_id) = (self.endpoint.name(), self.request_id.clone());
        let bound = self.idle.min(left / 2);
        if let Err(error) = tokio::time::timeout(bound, self.read()).await.unwrap_or_else(|_late| Err(failure::idle()))
        {
            let (kind, stage) = (error.kind.name(), error.stage.name());
            tracing::warn!(endpoint, request_id, kind, stage, "done, though the answer is not whole");
        }
    }

    fn log_end(&self, records: u32, unreadable: u32) {
        let (endpoint, request_id, bytes) = (self.endpoint.name(), &self.request_id, self.bytes);
        let elapsed_ms = milliseconds(self.asked);
        tracing::info!(endpoint, request_id, bytes, records, unreadable, elapsed_ms, "answer read");
    }
}

fn authorization(token: &Token) -> Result<HeaderValue, CallError> {
    let text = Zeroizing::new(format!("Token {}", token.expose()));
    let mut value = HeaderValue::from_str(&text).map_err(|_| failure::request("the token fits no header"))?;
    value.set_sensitive(true);
    Ok(value)
}

fn milliseconds(since: Instant) -> u64 {
    u64::try_from(since.elapsed().as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;
    use std::pin::Pin;
    use std::task::{Context, Poll, ready};

    use hyper::body::{Body, Frame};
    use tokio::time::Interval;

    use super::*;

    /// A body that sends a byte now and then, for ever.
    struct Drip(Interval);

    impl Body for Drip {
        type Data = Bytes;
        type Error = Infallible;

        fn poll_frame(
            mut self: Pin<&mut Self>,
            cx: &mut Context<'_>,
        ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
            ready!(self.0.poll_tick(cx));
            Poll::Ready(Some(Ok(Frame::data(Bytes::from_static(b" ")))))
        }
    }

    #[tokio::test(start_paused = true)]
    async fn n6_what_follows_a_success_takes_one_pause_at_most_however_it_drips() {
        let idle = Limits::default().idle;
        for (left, bound) in
            [(Duration::MAX, idle), (10 * idle, idle), (idle, idle / 2), (Duration::ZERO, Duration::ZERO)]
        {
            let body = reqwest::Body::wrap(Drip(tokio::time::interval(idle / 10)));
            let answer = Answer {
                response: hyper::Response::new(body).into(),
                idle,
                left: u64::MAX,
                bytes: 0,
                endpoint: Endpoint::Seen,
                request_id: "req".to_owned(),
                asked: Instant::now(),
            };
            let began = Instant::now();
            answer.drain(left).await;
            let took = began.elapsed();
            assert!(bound <= took && took <= bound + Duration::from_millis(1), "{left:?}: {took:?}");
        }
    }
}

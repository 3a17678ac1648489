//! The Journalist API, as a session uses it.
//!
//! [`JournalistApi`] hides which version of the server's API is spoken. [`HttpApi`] speaks version 1.
//!
//! **Invariant:** a method and a path are formed in `endpoint` alone, from typed values.
//!
//! **Invariant:** nothing is sent twice. A request that failed is the client's to repeat.

mod connecting;
mod endpoint;
mod failure;
mod http;
mod list;
mod sanitize;
mod socks;
mod wire;

use protocol::call::MAX_DELETED;
use protocol::value::{
    ArmoredMessage, Bounded, ItemId, OneTimeCode, OrderNumber, Passphrase, ReplyId, Size, SourceId, SubmissionId,
    Token, Username,
};
use protocol::{ApiLevel, CallError, SeenItems};

use crate::outlet::Outlet;

pub use http::{BuildError, HttpApi, Limits};

/// What a journalist signs in with.
#[derive(Debug)]
pub struct Credentials {
    /// The login name.
    pub username: Username,
    /// The passphrase.
    pub passphrase: Passphrase,
    /// The one-time code.
    pub one_time_code: OneTimeCode,
}

/// What of a conversation is to be deleted.
#[derive(Debug)]
pub struct Conversation {
    /// Whose it is.
    pub source: SourceId,
    /// Its items that are to be deleted.
    pub items: Bounded<ItemId, MAX_DELETED>,
    /// What is beyond this order number stays.
    pub upper_bound: OrderNumber,
}

/// A reply that is to be sent.
#[derive(Debug)]
pub struct OutgoingReply {
    /// To whom.
    pub source: SourceId,
    /// Its id, which the server is to keep.
    pub id: ReplyId,
    /// The reply, encrypted.
    pub message: ArmoredMessage,
}

/// The operations of the Journalist API. Each sends its answer through the outlet, which it begins only when the server
/// has accepted the call. Dropping a future stops the operation.
pub trait JournalistApi: Send + Sync + 'static {
    /// The newest version of the API that is spoken.
    const SPEAKS: ApiLevel;

    /// Asks for what the server shows to everybody, and says what time it is there. Fails where what answers is not the
    /// Journalist API.
    fn probe(&self, outlet: &mut Outlet<'_>) -> impl Future<Output = Result<(), CallError>> + Send;

    /// Signs in.
    fn login(
        &self,
        credentials: &Credentials,
        outlet: &mut Outlet<'_>,
    ) -> impl Future<Output = Result<(), CallError>> + Send;

    /// Ends a session.
    fn logout(&self, token: &Token, outlet: &mut Outlet<'_>) -> impl Future<Output = Result<(), CallError>> + Send;

    /// Lists the journalists.
    fn get_users(&self, token: &Token, outlet: &mut Outlet<'_>) -> impl Future<Output = Result<(), CallError>> + Send;

    /// Lists the sources.
    fn get_sources(&self, token: &Token, outlet: &mut Outlet<'_>)
    -> impl Future<Output = Result<(), CallError>> + Send;

    /// Lists the submissions of all sources, or of one.
    fn get_submissions(
        &self,
        token: &Token,
        source: Option<SourceId>,
        outlet: &mut Outlet<'_>,
    ) -> impl Future<Output = Result<(), CallError>> + Send;

    /// Lists the replies to all sources.
    fn get_all_replies(
        &self,
        token: &Token,
        outlet: &mut Outlet<'_>,
    ) -> impl Future<Output = Result<(), CallError>> + Send;

    /// Sends a reply, and says where in the conversation it was stored. A server that answers with another id than the
    /// reply's is a failure: it would store one more reply each time.
    fn send_reply(
        &self,
        token: &Token,
        reply: &OutgoingReply,
        outlet: &mut Outlet<'_>,
    ) -> impl Future<Output = Result<(), CallError>> + Send;

    /// Stars a source.
    fn star(
        &self,
        token: &Token,
        source: SourceId,
        outlet: &mut Outlet<'_>,
    ) -> impl Future<Output = Result<(), CallError>> + Send;

    /// Takes a source's star away.
    fn unstar(
        &self,
        token: &Token,
        source: SourceId,
        outlet: &mut Outlet<'_>,
    ) -> impl Future<Output = Result<(), CallError>> + Send;

    /// Marks items as seen by the session's journalist: all or none. No items are refused, and nothing is sent.
    fn mark_seen(
        &self,
        token: &Token,
        items: &SeenItems,
        outlet: &mut Outlet<'_>,
    ) -> impl Future<Output = Result<(), CallError>> + Send;

    /// Deletes a source with all that belongs to it.
    fn delete_source(
        &self,
        token: &Token,
        source: SourceId,
        outlet: &mut Outlet<'_>,
    ) -> impl Future<Output = Result<(), CallError>> + Send;

    /// Deletes items of one conversation, and sends what became of each as soon as that is known, in the order in which
    /// they are given. Only what the server lists for the source is deleted. Stops at the first failure that the next
    /// item would meet too.
    fn delete_conversation(
        &self,
        token: &Token,
        conversation: &Conversation,
        outlet: &mut Outlet<'_>,
    ) -> impl Future<Output = Result<(), CallError>> + Send;

    /// Deletes a message or a file.
    fn delete_submission(
        &self,
        token: &Token,
        source: SourceId,
        submission: SubmissionId,
        outlet: &mut Outlet<'_>,
    ) -> impl Future<Output = Result<(), CallError>> + Send;

    /// Deletes a reply.
    fn delete_reply(
        &self,
        token: &Token,
        source: SourceId,
        reply: ReplyId,
        outlet: &mut Outlet<'_>,
    ) -> impl Future<Output = Result<(), CallError>> + Send;

    /// Downloads the ciphertext of a message or a file, from the byte `from` on or, where the server does not resume, from
    /// its beginning: sends what it is, its pieces as they come, and their sum. Takes no more from the server than the
    /// outlet takes.
    fn download_submission(
        &self,
        token: &Token,
        source: SourceId,
        submission: SubmissionId,
        from: Size,
        outlet: &mut Outlet<'_>,
    ) -> impl Future<Output = Result<(), CallError>> + Send;

    /// Downloads the ciphertext of a reply, in the same way.
    fn download_reply(
        &self,
        token: &Token,
        source: SourceId,
        reply: ReplyId,
        from: Size,
        outlet: &mut Outlet<'_>,
    ) -> impl Future<Output = Result<(), CallError>> + Send;
}

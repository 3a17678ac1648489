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
mod wire;

use protocol::value::{OneTimeCode, Passphrase, SourceId, Token, Username};
use protocol::{ApiLevel, CallError};

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

/// The operations of the Journalist API. Each sends its answer through the outlet, which it begins only when the server
/// has accepted the call. Dropping a future stops the operation.
pub trait JournalistApi: Send + Sync + 'static {
    /// The newest version of the API that is spoken.
    const SPEAKS: ApiLevel;

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
}

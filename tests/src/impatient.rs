//! The proxy with bounds of its own, for tests of what a journalist sees when a call runs out of time: the shipped one waits
//! half a minute for a connection, and minutes for an answer.
//!
//! It is what the shipped program is but for the bounds, the log and the confinement: the same settings, session and HTTP.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use protocol::Confinement;
use protocol::value::SoftwareVersion;
use proxy_vm::config::{self, Config, Route};
use proxy_vm::journalist_api::{HttpApi, Limits};
use proxy_vm::session::Session;
use tokio_util::sync::CancellationToken;

/// How long a proxy waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Patience {
    /// For a connection, with Tor's way.
    pub connect: Duration,
    /// For the first byte of an answer.
    pub first_byte: Duration,
}

impl Patience {
    fn limits(self) -> Limits {
        // Of a list's deadline so much as a body may pause is kept for the body, and the first byte may take the rest: with all
        // of it kept the bound for the first byte is the one that is given.
        Limits { connect: self.connect, first_byte: self.first_byte, idle: Duration::MAX, ..Limits::default() }
    }
}

/// Serves the one call for which qrexec has started this process, from standard input to standard output.
///
/// # Errors
/// That there is no such call, or that its settings are none; the client is told of what is wrong with the call itself.
pub async fn serve(patience: Patience) -> anyhow::Result<()> {
    let variable = |name: &str| std::env::var(name).ok();
    let argument = variable("QREXEC_SERVICE_ARGUMENT");
    let scope =
        config::scope(argument.as_deref(), None).context("not started by qrexec for one of the proxy's scopes")?;
    let config = Config::load(|name| Ok(variable(name)))?;
    let tor = matches!(config.route, Route::Tor { .. });
    let api = HttpApi::try_new(&config, patience.limits())?;
    let session = Session::new(api, tor, config.delete_limit, Confinement::NONE);
    let software = SoftwareVersion::try_new(env!("CARGO_PKG_VERSION"))?;
    let (input, output) = (tokio::io::stdin(), tokio::io::stdout());
    let served =
        qubes_rpc::serve::serve(input, output, scope, software, Arc::new(session), CancellationToken::new()).await;
    Ok(served?)
}

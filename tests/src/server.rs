//! A staging SecureDrop server: version 1 of the Journalist API as real servers speak it, on the loopback, in this
//! process.
//!
//! It answers out of a [`World`] that tests make and change while it runs, tells what it was asked, and goes wrong on
//! request. It is meant to be as inconvenient as the real thing: items of sources that are not listed, marks in no order,
//! names that are null here and empty there, one status for every reason not to let somebody in.
//!
//! **Invariant:** there is no state outside a [`Server`]; any number of them run side by side.
//!
//! **Invariant:** when a server is stopped or dropped, its tasks and connections are gone.
//!
//! **Invariant:** what the API does not have is answered like any unknown route, never made up.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use thiserror::Error;
use tokio::net::TcpListener;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

mod acts;
mod answer;
mod body;
mod ciphertext;
mod connection;
mod control;
mod desk;
mod downloads;
mod exchange;
mod faults;
mod flavour;
mod gzip;
mod log;
mod login;
mod options;
mod reading;
mod replies;
mod routes;
mod wire;
mod world;

pub use ciphertext::{
    Body, CiphertextError, GzipFlaw, LARGEST_ITEM, MOST_LAYERS, MOST_ZEROS, Protection, Reader, SMALLEST_FILE,
    SMALLEST_MESSAGE, SMALLEST_REPLY, SMALLEST_ZIPPED_FILE, Seal,
};
pub use control::{Command, Control, ControlError, KeyChoice, Outcome};
pub use faults::{Edit, Fault, FaultAct, FaultError, FaultStatus, LARGEST_BODY, LONGEST_DELAY, Matching, Which};
pub use flavour::ApiFlavour;
pub use log::{LoggedRequest, RequestLog};
pub use options::{SeenByOrder, ServerOptions, WebServer};
pub use reading::{Reading, ReadingError, Recipient, Whose};
pub use world::{
    Change, Changes, DELETED_JOURNALIST, FileState, ItemFile, Journalist, RecordId, Reply, Source, SourceKey,
    SourceState, Submission, SubmissionKind, World, WorldError,
};

use connection::Manners;
use desk::Desk;

/// Why a server did not start.
#[derive(Debug, Error)]
pub enum ServerError {
    /// An address cannot be listened on.
    #[error("cannot listen on {address}")]
    Listen {
        /// The address.
        address: SocketAddr,
        /// What the machine said.
        source: io::Error,
    },
    /// Commands are taken on the loopback only.
    #[error("the control listener must be on the loopback, and {0} is not")]
    ControlNotLoopback(SocketAddr),
}

/// A running server. Dropping it ends it at once; [`Server::stop`] lets answers finish.
#[derive(Debug)]
pub struct Server {
    address: SocketAddr,
    control_address: Option<SocketAddr>,
    control: Control,
    stop: CancellationToken,
    tasks: JoinSet<()>,
}

impl Server {
    /// Starts a server. It takes connections when this returns. Cancel-safe: dropped early, nothing is left.
    ///
    /// # Errors
    ///
    /// [`ServerError`] when one of its addresses cannot be listened on.
    pub async fn start(options: ServerOptions) -> Result<Self, ServerError> {
        if let Some(address) = options.control_listener
            && !address.ip().is_loopback()
        {
            return Err(ServerError::ControlNotLoopback(address));
        }
        let (listener, address) = listen(options.bind).await?;
        let control_listener = match options.control_listener {
            Some(address) => Some(listen(address).await?),
            None => None,
        };
        let manners = Manners { idle_timeout: options.idle_timeout, close_after_answer: options.close_after_answer };
        let desk = Arc::new(Desk::new(options));
        let control = Control::new(Arc::clone(&desk));
        let stop = CancellationToken::new();
        let mut tasks = JoinSet::new();
        let router = routes::router(Arc::clone(&desk));
        let stopping = stop.clone();
        let serve = move |stream| {
            let (desk, router, stop) = (Arc::clone(&desk), router.clone(), stopping.clone());
            connection::serve_api(stream, desk, router, manners, stop)
        };
        tasks.spawn(connection::accept(listener, stop.clone(), serve));
        let control_address = control_listener.as_ref().map(|(_, address)| *address);
        if let Some((listener, _)) = control_listener {
            let router = control::http::router(control.clone());
            let stopping = stop.clone();
            let serve = move |stream| connection::serve_control(stream, router.clone(), stopping.clone());
            tasks.spawn(connection::accept(listener, stop.clone(), serve));
        }
        Ok(Self { address, control_address, control, stop, tasks })
    }

    /// The API's origin, such as `http://127.0.0.1:4321`.
    pub fn origin(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Where the API listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The origin of the control listener, if there is one.
    pub fn control_origin(&self) -> Option<String> {
        self.control_address.map(|address| format!("http://{address}"))
    }

    /// The server's other side.
    pub fn control(&self) -> &Control {
        &self.control
    }

    /// Stops the server: no new connections, what hangs ends, other answers get two seconds to finish. When this
    /// returns nothing of the server runs. Cancel-safe: dropped early, it ends the server at once.
    pub async fn stop(mut self) {
        self.stop.cancel();
        while self.tasks.join_next().await.is_some() {}
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

async fn listen(address: SocketAddr) -> Result<(TcpListener, SocketAddr), ServerError> {
    let failed = |source| ServerError::Listen { address, source };
    let listener = TcpListener::bind(address).await.map_err(failed)?;
    let address = listener.local_addr().map_err(failed)?;
    Ok((listener, address))
}

#[cfg(test)]
mod tests;

//! What a server is started with.

use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use super::flavour::ApiFlavour;
use super::world::World;
use crate::clock::Clock;
use crate::generator::NewsroomKey;

/// How long a session lasts on a real server.
const SESSION_LIFETIME: Duration = Duration::from_secs(7_200);

/// What stands between the client and the application.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum WebServer {
    /// A web server that adds its headers and answers an HTML 403 to methods other than GET, POST, HEAD and DELETE.
    #[default]
    Production,
    /// Nothing.
    Development,
}

/// In which order an item's list names those who have seen it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum SeenByOrder {
    /// Turned around from one answer to the next: the API promises no order, so nobody may rely on one.
    #[default]
    Alternating,
    /// Always the order of seeing.
    Stable,
}

/// What a server is started with. [`ServerOptions::new`] gives the usual; change what a test is about.
#[derive(Debug)]
pub struct ServerOptions {
    /// Where the API listens. Port 0 takes a free one.
    pub bind: SocketAddr,
    /// What the server knows.
    pub world: World,
    /// Which age of server to be.
    pub api: ApiFlavour,
    /// What stands before the application.
    pub web_server: WebServer,
    /// What time it is, for one-time codes, sessions and new items.
    pub clock: Clock,
    /// Whether more than five logins of a user within a minute are refused, as at a real server. Tests sign in more often.
    pub throttle_logins: bool,
    /// How long a session lasts.
    pub session_lifetime: Duration,
    /// Which key of the newsroom's items are encrypted to.
    pub newsroom: NewsroomKey,
    /// Whether a submission counts as read once it was downloaded, which servers of some ages do and others do not.
    pub downloads_mark_read: bool,
    /// Whether answers other than downloads are compressed for those who take gzip.
    pub gzip: bool,
    /// In which order marks are named in lists.
    pub seen_by_order: SeenByOrder,
    /// Whether a source that a journalist deletes is purged at once; otherwise it is marked deleted until a command purges
    /// it.
    pub purge_at_once: bool,
    /// After how long a connection on which nothing is asked is closed; never without.
    pub idle_timeout: Option<Duration>,
    /// Whether every connection ends with its first answer, as with a development server.
    pub close_after_answer: bool,
    /// Where commands are taken over HTTP, on an origin of their own; nowhere without. Loopback only.
    pub control_listener: Option<SocketAddr>,
    /// What the ids and designations of new things come from.
    pub seed: u64,
}

impl ServerOptions {
    /// A production server of the classic flavour on a free port of the loopback, on the machine's time.
    pub fn new(world: World) -> Self {
        Self {
            bind: Self::LOOPBACK,
            world,
            api: ApiFlavour::default(),
            web_server: WebServer::default(),
            clock: Clock::system(),
            throttle_logins: false,
            session_lifetime: SESSION_LIFETIME,
            newsroom: NewsroomKey::default(),
            downloads_mark_read: true,
            gzip: false,
            seen_by_order: SeenByOrder::default(),
            purge_at_once: false,
            idle_timeout: None,
            close_after_answer: false,
            control_listener: None,
            seed: 1,
        }
    }

    /// A free port of the loopback.
    pub const LOOPBACK: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 0);
}

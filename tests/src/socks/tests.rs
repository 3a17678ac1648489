//! Tests of the whole SOCKS server, from outside: a small client, and a server behind the name.

use std::future::Future;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener as Listening, TcpStream};

use super::*;

mod faults;
mod flow;
mod hostile;
mod reach;

/// A made-up name.
const ONION: &str = "example.onion";
const PORT: u16 = 80;

/// A SOCKS server, and a server behind [`ONION`] that a test plays itself.
struct Site {
    socks: SocksServer,
    behind: Listening,
}

impl Site {
    async fn start() -> Self {
        Self::with(|_| {}).await
    }

    async fn with(change: impl FnOnce(&mut SocksOptions)) -> Self {
        let behind = Listening::bind("127.0.0.1:0").await.unwrap();
        let names = NameTable::new().with(ONION, PORT, behind.local_addr().unwrap()).unwrap();
        let mut options = SocksOptions::new(names);
        change(&mut options);
        Self { socks: SocksServer::start(options).unwrap(), behind }
    }

    fn control(&self) -> &SocksControl {
        self.socks.control()
    }

    async fn client(&self) -> TcpStream {
        TcpStream::connect(self.socks.address()).await.unwrap()
    }

    /// A stream to the name, from both ends.
    async fn stream(&self) -> (TcpStream, TcpStream) {
        let mut client = self.client().await;
        assert_eq!(ask(&mut client, ONION, PORT).await.unwrap(), Reply::SUCCEEDED);
        (client, self.behind.accept().await.unwrap().0)
    }

    /// How the `connection`th connection ended, once it has.
    async fn ending(&self, connection: u64) -> Ending {
        let control = self.control();
        let ended = |event: &SocksEvent| match event.what {
            What::Ended(ending) if event.connection == connection => Some(ending),
            _ => None,
        };
        loop {
            let seen = control.counts();
            if let Some(ending) = control.events().iter().find_map(ended) {
                return ending;
            }
            control.wait_for(|counts| *counts != seen).await;
        }
    }
}

/// Asks for a name without naming oneself.
async fn ask(client: &mut TcpStream, name: &str, port: u16) -> std::io::Result<Reply> {
    client.write_all(&[5, 1, 0]).await?;
    let mut method = [0; 2];
    client.read_exact(&mut method).await?;
    assert_eq!(method, [5, 0]);
    client.write_all(&request(name, port)).await?;
    answer(client).await
}

fn request(name: &str, port: u16) -> Vec<u8> {
    let mut request = vec![5, 1, 0, 3, u8::try_from(name.len()).unwrap()];
    request.extend_from_slice(name.as_bytes());
    request.extend_from_slice(&port.to_be_bytes());
    request
}

async fn answer(client: &mut TcpStream) -> std::io::Result<Reply> {
    let mut answer = [0; 10];
    client.read_exact(&mut answer).await?;
    assert_eq!((answer[0], answer[2], answer[3]), (5, 0, 1));
    Ok(Reply(answer[1]))
}

/// What still comes before the stream ends, however it does.
async fn rest(stream: &mut TcpStream) -> Vec<u8> {
    let mut bytes = Vec::new();
    let _reset = stream.read_to_end(&mut bytes).await;
    bytes
}

/// Runs a test under a watchdog: a test that would hang fails instead.
async fn bounded(test: impl Future<Output = ()>) {
    tokio::time::timeout(Duration::from_secs(120), test).await.expect("the test hangs");
}

//! A SOCKS 5 server (RFC 1928) that does what a test says.

use std::net::SocketAddr;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, copy_bidirectional};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;

/// What the stub does with a request to connect.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Way {
    /// Connects to this address, whatever was asked for.
    Relay(SocketAddr),
    /// Answers with this code.
    Reply(u8),
    /// Answers a greeting with these bytes, whatever they are, and says nothing more.
    Greeting(&'static [u8]),
    /// Closes the connection once it knows what is asked for.
    HangUp,
    /// Never answers.
    Hang,
}

/// Where a client wanted to go.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Destination {
    Name(String, u16),
    Address(Vec<u8>, u16),
    /// It was not let to say it.
    None,
}

pub(crate) struct SocksStub {
    pub(crate) address: SocketAddr,
    asked: watch::Receiver<Vec<Destination>>,
    _tasks: JoinSet<()>,
}

impl SocksStub {
    pub(crate) async fn new(way: Way) -> Self {
        Self::in_turn(vec![way]).await
    }

    /// Does with the first connection what the first of `ways` says, and so on, and with all others what the last says.
    pub(crate) async fn in_turn(ways: Vec<Way>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (seen, asked) = watch::channel(Vec::new());
        let mut tasks = JoinSet::new();
        tasks.spawn(async move {
            let mut serving = JoinSet::new();
            for connection in 0.. {
                let (stream, _) = listener.accept().await.unwrap();
                let way = *ways.get(connection).or(ways.last()).unwrap();
                let seen = seen.clone();
                serving.spawn(async move {
                    // A client that goes away is for the test to notice.
                    let _gone = speak(stream, way, &seen).await;
                });
            }
        });
        Self { address, asked, _tasks: tasks }
    }

    pub(crate) fn asked(&self) -> Vec<Destination> {
        self.asked.borrow().clone()
    }

    /// Waits until so many have said where they want to go.
    pub(crate) async fn until_asked(&self, times: usize) {
        self.asked.clone().wait_for(|asked| asked.len() >= times).await.unwrap();
    }
}

async fn speak(mut stream: TcpStream, way: Way, asked: &watch::Sender<Vec<Destination>>) -> std::io::Result<()> {
    let mut greeting = [0; 2];
    stream.read_exact(&mut greeting).await?;
    let mut methods = vec![0; usize::from(greeting[1])];
    stream.read_exact(&mut methods).await?;
    if let Way::Greeting(bytes) = way {
        asked.send_modify(|asked| asked.push(Destination::None));
        stream.write_all(bytes).await?;
        tokio::io::copy(&mut stream, &mut tokio::io::sink()).await?;
        return Ok(());
    }
    stream.write_all(&[5, 0]).await?;
    let mut request = [0; 4];
    stream.read_exact(&mut request).await?;
    let destination = if request[3] == 3 {
        let mut name = vec![0; usize::from(stream.read_u8().await?)];
        stream.read_exact(&mut name).await?;
        Destination::Name(String::from_utf8(name).unwrap(), stream.read_u16().await?)
    } else {
        let mut address = vec![0; if request[3] == 1 { 4 } else { 16 }];
        stream.read_exact(&mut address).await?;
        Destination::Address(address, stream.read_u16().await?)
    };
    asked.send_modify(|asked| asked.push(destination));
    match way {
        Way::Relay(to) => {
            stream.write_all(&[5, 0, 0, 1, 0, 0, 0, 0, 0, 0]).await?;
            let mut upstream = TcpStream::connect(to).await?;
            copy_bidirectional(&mut stream, &mut upstream).await?;
        }
        Way::Reply(code) => stream.write_all(&[5, code, 0, 1, 0, 0, 0, 0, 0, 0]).await?,
        Way::HangUp | Way::Greeting(_) => {}
        Way::Hang => std::future::pending().await,
    }
    Ok(())
}

//! What is reached and what is not.

use super::*;

#[tokio::test]
async fn a_name_leads_to_its_server_and_bytes_go_both_ways() {
    bounded(async {
        let site = Site::start().await;
        let (mut client, mut server) = site.stream().await;
        client.write_all(b"question").await.unwrap();
        let mut question = [0; 8];
        server.read_exact(&mut question).await.unwrap();
        server.write_all(b"the answer").await.unwrap();
        drop(server);
        assert_eq!((&question, rest(&mut client).await.as_slice()), (b"question", b"the answer".as_slice()));
        assert_eq!(site.ending(1).await, Ending::Finished);
        let counts = site.control().counts();
        assert_eq!((counts.accepted, counts.open, counts.max_open, counts.established), (1, 0, 1, 1));
        assert_eq!((counts.bytes_to_server, counts.bytes_to_client), (8, 10));
        assert_eq!((counts.requests_for(ONION, PORT), counts.refused.len()), (1, 0));
    })
    .await;
}

#[tokio::test]
async fn the_log_says_what_happened_and_from_where_the_server_is_reached() {
    bounded(async {
        let site = Site::start().await;
        let mut client = site.client().await;
        assert_eq!(ask(&mut client, "EXAMPLE.onion", PORT).await.unwrap(), Reply::SUCCEEDED);
        let (server, from) = site.behind.accept().await.unwrap();
        drop((client, server));
        assert_eq!(site.ending(1).await, Ending::Finished);
        let what: Vec<_> = site.control().events().into_iter().map(|event| event.what).collect();
        assert_eq!(
            what,
            [
                What::Accepted,
                What::Asked(Target::Name("EXAMPLE.onion".to_owned(), PORT)),
                What::Established(from),
                What::Ended(Ending::Finished)
            ]
        );
    })
    .await;
}

#[tokio::test]
async fn a_stream_ends_when_the_client_does() {
    bounded(async {
        let site = Site::start().await;
        let (mut client, mut server) = site.stream().await;
        client.write_all(b"last words").await.unwrap();
        drop(client);
        assert_eq!(rest(&mut server).await, b"last words");
        assert_eq!(site.ending(1).await, Ending::Finished);
    })
    .await;
}

#[tokio::test]
async fn only_names_of_the_table_are_reached() {
    bounded(async {
        let site = Site::start().await;
        let behind = site.behind.local_addr().unwrap();
        for (name, port, reason, reply) in [
            ("other.onion", PORT, Refusal::UnknownName, Reply::HOST_UNREACHABLE),
            ("localhost", behind.port(), Refusal::UnknownName, Reply::HOST_UNREACHABLE),
            ("", PORT, Refusal::UnknownName, Reply::HOST_UNREACHABLE),
            (ONION, 443, Refusal::UnknownPort, Reply::HOST_UNREACHABLE),
            ("127.0.0.1", behind.port(), Refusal::Address, Reply::NOT_ALLOWED),
        ] {
            let before = site.control().counts().refused_for(reason);
            let mut client = site.client().await;
            assert_eq!(ask(&mut client, name, port).await.unwrap(), reply, "{name}");
            assert_eq!(rest(&mut client).await, b"");
            assert_eq!(site.control().counts().refused_for(reason), before + 1, "{name}");
        }
        let mut client = site.client().await;
        client.write_all(&[5, 1, 0, 5, 1, 0, 1, 127, 0, 0, 1, 0, 80]).await.unwrap();
        let mut answers = rest(&mut client).await;
        assert_eq!(answers.split_off(2)[..2], [5, 2]);
        let counts = site.control().counts();
        assert_eq!((counts.refused_for(Refusal::Address), counts.established), (2, 0));
        // Addresses are not among the requests for names.
        assert_eq!(counts.requests.values().sum::<u64>(), 4);
    })
    .await;
}

#[tokio::test]
async fn what_is_unknown_can_be_said_in_tors_words() {
    bounded(async {
        let site = Site::with(|options| options.unknown = Reply::ONION_NOT_FOUND).await;
        let mut client = site.client().await;
        assert_eq!(ask(&mut client, "other.onion", PORT).await.unwrap(), Reply(0xF0));
        site.control().set_names(NameTable::new());
        let mut client = site.client().await;
        assert_eq!(ask(&mut client, ONION, PORT).await.unwrap(), Reply(0xF0));
    })
    .await;
}

#[tokio::test]
async fn a_server_that_is_down_is_said_to_refuse() {
    bounded(async {
        let Site { socks, behind } = Site::start().await;
        drop(behind);
        let mut client = TcpStream::connect(socks.address()).await.unwrap();
        assert_eq!(ask(&mut client, ONION, PORT).await.unwrap(), Reply::CONNECTION_REFUSED);
        assert_eq!(socks.control().counts().refused_for(Refusal::TargetDown), 1);
    })
    .await;
}

#[tokio::test]
async fn only_connect_is_served() {
    bounded(async {
        let site = Site::start().await;
        // BIND, UDP ASSOCIATE, and Tor's two to resolve names.
        for command in [2, 3, 0xF0, 0xF1] {
            let mut client = site.client().await;
            let mut sent = vec![5, 1, 0];
            sent.extend_from_slice(&request(ONION, PORT));
            sent[4] = command;
            client.write_all(&sent).await.unwrap();
            assert_eq!(rest(&mut client).await[2..4], [5, 7], "{command}");
        }
        let mut client = site.client().await;
        client.write_all(&[5, 1, 0, 5, 1, 0, 2]).await.unwrap();
        assert_eq!(rest(&mut client).await[2..4], [5, 8]);
        let counts = site.control().counts();
        assert_eq!((counts.refused_for(Refusal::Command), counts.refused_for(Refusal::AddressType)), (4, 1));
    })
    .await;
}

#[tokio::test]
async fn an_http_client_fetches_by_name_with_and_without_a_password() {
    bounded(async {
        // reqwest insists on it, and one test of the process is the first.
        let _already_there = rustls::crypto::ring::default_provider().install_default();
        let world = crate::generator::Recipe::new(1, 1).generate().unwrap();
        let server = crate::server::Server::start(crate::server::ServerOptions::new(world)).await.unwrap();
        let site = Site::start().await;
        site.control().set_names(NameTable::new().with(ONION, PORT, server.address()).unwrap());
        for user in ["", "stream:isolation@"] {
            let proxy = reqwest::Proxy::all(format!("socks5h://{user}{}", site.socks.address())).unwrap();
            let client = reqwest::Client::builder().proxy(proxy).build().unwrap();
            let answer = client.get(format!("http://{ONION}/api/v1/")).send().await.unwrap();
            assert_eq!(answer.status(), 200);
            assert!(answer.text().await.unwrap().contains("sources_url"));
        }
        let counts = site.control().counts();
        assert_eq!((counts.requests_for(ONION, PORT), counts.with_password), (2, 1));
        assert_eq!(counts.established, server.control().with_log(|log| log.connections()));
    })
    .await;
}

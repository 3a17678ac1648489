//! What goes wrong, and that it does so where it was told to.

use super::*;

async fn faulty(act: Act) -> Site {
    let site = Site::start().await;
    site.control().add_fault(SocksFault::new(act).times(1)).unwrap();
    site
}

/// The next connection goes as it should: the rule is used up, and did no harm.
async fn recovered(site: &Site) {
    let (mut client, server) = site.stream().await;
    drop(server);
    assert_eq!(rest(&mut client).await, b"");
    assert_eq!(site.control().counts().faulted, 1);
}

#[tokio::test]
async fn a_connection_is_closed_at_each_step() {
    bounded(async {
        for (step, heard) in [
            (Step::Accepted, b"".as_slice()),
            (Step::MethodChosen, &[5, 0]),
            (Step::Requested, &[5, 0]),
            (Step::Established, &[5, 0, 5, 0, 0, 1, 0, 0, 0, 0, 0, 0]),
        ] {
            let site = faulty(Act::CloseAt(step)).await;
            let mut client = site.client().await;
            client.write_all(&[5, 1, 0]).await.unwrap();
            if step > Step::Accepted {
                let mut method = [0; 2];
                client.read_exact(&mut method).await.unwrap();
                // The server may be gone already.
                let _reset = client.write_all(&request(ONION, PORT)).await;
                assert_eq!([&method, rest(&mut client).await.as_slice()].concat(), heard, "{step:?}");
            } else {
                assert_eq!(rest(&mut client).await, heard);
            }
            assert_eq!(site.ending(1).await, Ending::Faulted);
            let counts = site.control().counts();
            assert_eq!(counts.requests_for(ONION, PORT), u64::from(step >= Step::Requested));
            assert_eq!(counts.established, u64::from(step == Step::Established));
            if step == Step::Established {
                // The server behind saw a connection that brought nothing.
                assert_eq!(rest(&mut site.behind.accept().await.unwrap().0).await, b"");
            }
            recovered(&site).await;
        }
    })
    .await;
}

#[tokio::test]
async fn a_connection_hangs_at_each_step_until_the_client_goes() {
    bounded(async {
        for step in Step::ALL {
            let site = faulty(Act::HangAt(step)).await;
            let mut client = site.client().await;
            client.write_all(&[5, 1, 0]).await.unwrap();
            if step > Step::Accepted {
                client.read_exact(&mut [0; 2]).await.unwrap();
                client.write_all(&request(ONION, PORT)).await.unwrap();
            }
            if step == Step::Established {
                assert_eq!(answer(&mut client).await.unwrap(), Reply::SUCCEEDED);
                client.write_all(b"never arrives").await.unwrap();
            }
            site.control().wait_for(|counts| counts.hanging == 1).await;
            let counts = site.control().counts();
            assert_eq!((counts.open, counts.bytes_to_server), (1, 0), "{step:?}");
            assert_eq!(counts.requests_for(ONION, PORT), u64::from(step >= Step::Requested));
            client.shutdown().await.unwrap();
            // Not a byte came meanwhile.
            assert_eq!(rest(&mut client).await, b"", "{step:?}");
            assert_eq!(site.ending(1).await, Ending::Faulted);
            assert_eq!(site.control().counts().hanging, 0);
            if step == Step::Established {
                assert_eq!(rest(&mut site.behind.accept().await.unwrap().0).await, b"");
            }
            recovered(&site).await;
        }
    })
    .await;
}

#[tokio::test]
async fn every_reply_can_be_had() {
    bounded(async {
        let site = Site::start().await;
        for reply in Reply::FAILURES {
            site.control().add_fault(SocksFault::new(Act::Reply(reply)).times(1)).unwrap();
            let mut client = site.client().await;
            assert_eq!(ask(&mut client, ONION, PORT).await.unwrap(), reply);
            assert_eq!(rest(&mut client).await, b"");
        }
        assert_eq!(site.control().counts().established, 0);
        assert!(site.control().faults().iter().all(|status| status.acted == 1));
    })
    .await;
}

#[tokio::test]
async fn a_stream_is_dropped_after_so_many_bytes() {
    bounded(async {
        for bytes in [0_u8, 1, 7] {
            let site = faulty(Act::DropAfter { direction: Direction::ToClient, bytes: bytes.into() }).await;
            let (mut client, mut server) = site.stream().await;
            client.write_all(b"ask").await.unwrap();
            server.read_exact(&mut [0; 3]).await.unwrap();
            server.write_all(b"answered").await.unwrap();
            assert_eq!(rest(&mut client).await, b"answered"[..bytes.into()]);
            assert_eq!(rest(&mut server).await, b"");
            assert_eq!(site.ending(1).await, Ending::Faulted);
            assert_eq!(site.control().counts().bytes_to_client, u64::from(bytes));

            let site = faulty(Act::DropAfter { direction: Direction::ToServer, bytes: bytes.into() }).await;
            let (mut client, mut server) = site.stream().await;
            client.write_all(b"question").await.unwrap();
            assert_eq!(rest(&mut server).await, b"question"[..bytes.into()]);
            assert_eq!(rest(&mut client).await, b"");
            assert_eq!(site.control().counts().bytes_to_server, u64::from(bytes));
        }
    })
    .await;
}

#[tokio::test]
async fn a_stream_of_just_so_many_bytes_is_not_dropped() {
    bounded(async {
        let site = faulty(Act::DropAfter { direction: Direction::ToClient, bytes: 8 }).await;
        let (mut client, mut server) = site.stream().await;
        server.write_all(b"answered").await.unwrap();
        drop(server);
        assert_eq!(rest(&mut client).await, b"answered");
        assert_eq!(site.ending(1).await, Ending::Finished);
    })
    .await;
}

#[tokio::test]
async fn a_stream_that_hangs_moves_nothing_either_way_and_stays() {
    bounded(async {
        let site = faulty(Act::HangAfter { direction: Direction::ToClient, bytes: 3 }).await;
        let (mut client, mut server) = site.stream().await;
        server.write_all(b"answered").await.unwrap();
        let mut heard = [0; 3];
        client.read_exact(&mut heard).await.unwrap();
        assert_eq!(&heard, b"ans");
        site.control().wait_for(|counts| counts.hanging == 1).await;
        client.write_all(b"still there?").await.unwrap();
        client.shutdown().await.unwrap();
        assert_eq!(rest(&mut client).await, b"");
        assert_eq!(rest(&mut server).await, b"");
        assert_eq!(site.ending(1).await, Ending::Faulted);
        let counts = site.control().counts();
        assert_eq!((counts.bytes_to_client, counts.bytes_to_server), (3, 0));
    })
    .await;
}

#[tokio::test]
async fn a_rule_about_a_name_leaves_others_alone() {
    bounded(async {
        let site = Site::start().await;
        let behind = site.behind.local_addr().unwrap();
        let names = NameTable::new().with(ONION, PORT, behind).unwrap().with("other.onion", PORT, behind).unwrap();
        site.control().set_names(names);
        let fault = SocksFault::new(Act::Reply(Reply::TTL_EXPIRED)).for_name("other.onion").unwrap();
        let id = site.control().add_fault(fault).unwrap();
        drop(site.stream().await);
        for _ in 0..2 {
            let mut client = site.client().await;
            assert_eq!(ask(&mut client, "Other.onion", PORT).await.unwrap(), Reply::TTL_EXPIRED);
        }
        assert!(site.control().remove_fault(id) && !site.control().remove_fault(id));
        let mut client = site.client().await;
        assert_eq!(ask(&mut client, "other.onion", PORT).await.unwrap(), Reply::SUCCEEDED);
    })
    .await;
}

#[tokio::test]
async fn a_closed_port_refuses_and_opens_again_with_the_same_number() {
    bounded(async {
        let site = Site::start().await;
        let (mut early, mut server) = site.stream().await;
        for _ in 0..3 {
            site.control().close_port().unwrap();
            site.control().close_port().unwrap();
            let refused = TcpStream::connect(site.socks.address()).await.unwrap_err();
            assert_eq!(refused.kind(), std::io::ErrorKind::ConnectionRefused);
            site.control().open_port().unwrap();
            site.control().open_port().unwrap();
            drop(site.stream().await);
        }
        // Whoever was in before stayed.
        server.write_all(b"still here").await.unwrap();
        drop(server);
        assert_eq!(rest(&mut early).await, b"still here");
    })
    .await;
}

#[tokio::test]
async fn all_streams_can_be_cut_and_the_next_one_works() {
    bounded(async {
        let site = Site::start().await;
        site.control().add_fault(SocksFault::new(Act::HangAt(Step::MethodChosen)).times(1)).unwrap();
        let mut hanging = site.client().await;
        hanging.write_all(&[5, 1, 0]).await.unwrap();
        hanging.read_exact(&mut [0; 2]).await.unwrap();
        let (mut client, mut server) = site.stream().await;
        site.control().cut_all().await;
        let counts = site.control().counts();
        assert_eq!((counts.open, counts.hanging, counts.accepted), (0, 0, 2));
        for stream in [&mut hanging, &mut client, &mut server] {
            assert_eq!(rest(stream).await, b"");
        }
        assert_eq!((site.ending(1).await, site.ending(2).await), (Ending::Cut, Ending::Cut));
        drop(site.stream().await);
    })
    .await;
}

#[tokio::test]
async fn a_server_that_is_stopped_or_dropped_leaves_nothing() {
    bounded(async {
        for stopped in [true, false] {
            let site = Site::start().await;
            let (mut client, mut server) = site.stream().await;
            let (address, control) = (site.socks.address(), site.control().clone());
            match stopped {
                true => site.socks.stop().await,
                false => drop(site.socks),
            }
            assert_eq!(rest(&mut client).await, b"");
            assert_eq!(rest(&mut server).await, b"");
            let refused = TcpStream::connect(address).await.unwrap_err();
            assert_eq!(refused.kind(), std::io::ErrorKind::ConnectionRefused);
            // The handle still tells.
            control.wait_for(|counts| counts.open == 0).await;
            assert_eq!(control.counts().accepted, 1);
        }
    })
    .await;
}

//! Lists that tell of the past: all of them from a moment on, or one answer that was written and waits.

use super::*;

const SOURCES: &str = "/api/v1/sources";

/// A server, a token, and the first source of the list.
async fn site() -> (Site, String, RecordId) {
    let site = Site::start(ServerOptions { seen_by_order: SeenByOrder::Stable, ..small() }).await;
    let token = site.sign_in(MARLOW).await;
    let source = first_source(&site);
    (site, token, source)
}

fn star(site: &Site, token: &str, source: &RecordId) -> RequestBuilder {
    site.signed(Method::POST, &format!("{SOURCES}/{source}/add_star"), token)
}

fn is_starred(list: &Value, source: &RecordId) -> Value {
    let sources = list["sources"].as_array().unwrap();
    sources.iter().find(|record| record["uuid"] == source.as_str()).unwrap()["is_starred"].clone()
}

/// Asks for the sources, and does `meanwhile` once the answer is written and held.
async fn while_held(site: &Site, token: &str, meanwhile: impl Future<Output = ()>) -> Value {
    let (answer, ()) = tokio::join!(site.read(SOURCES, token), async {
        site.control().wait_for_log(|log| log.held() == 1).await;
        meanwhile.await;
    });
    answer
}

#[tokio::test]
async fn frozen_lists_stay_while_acts_take_effect() {
    bounded(async {
        let (site, token, source) = site().await;
        let control = site.control();
        let of = format!("{SOURCES}/{source}");
        let lists = [
            String::from(SOURCES),
            String::from("/api/v1/submissions"),
            String::from("/api/v1/replies"),
            String::from("/api/v1/users"),
            format!("{of}/submissions"),
            format!("{of}/replies"),
        ];
        let all = async || {
            let mut all = Vec::new();
            for list in &lists {
                all.push(site.read(list, &token).await);
            }
            all
        };
        control.apply(Command::Unstar { source: source.clone() }).unwrap();
        control.apply(Command::ForgetLastUpdated { source: source.clone() }).unwrap();
        let before = all().await;
        control.apply(Command::FreezeLists).unwrap();

        control.apply(Command::AdvanceClock { seconds: 60 }).unwrap();
        assert_eq!(star(&site, &token, &source).send().await.unwrap().status(), 201);
        control.apply(Command::NewMessage { source: source.clone(), size: SMALLEST_MESSAGE }).unwrap();
        let journalist = TERNBERG.username.to_owned();
        control
            .apply(Command::NewReply { source: source.clone(), journalist: journalist.clone(), size: SMALLEST_REPLY })
            .unwrap();
        control.apply(Command::DeleteJournalist { journalist }).unwrap();
        assert_eq!(all().await, before);
        // Acts took effect, and single records say so.
        assert_eq!(site.read(&of, &token).await["is_starred"], true);
        let delete = || site.signed(Method::DELETE, &of, &token);
        assert_eq!(delete().send().await.unwrap().status(), 200);
        refused(delete(), 404, NOT_FOUND).await;
        control.apply(Command::Purge).unwrap();
        assert_eq!(all().await, before);

        control.apply(Command::ThawLists).unwrap();
        let after = site.read(SOURCES, &token).await;
        let sources = after["sources"].as_array().unwrap();
        assert!(sources.iter().all(|record| record["uuid"] != source.as_str()));
        refused(site.signed(Method::GET, &format!("{of}/replies"), &token), 404, NOT_FOUND).await;
    })
    .await;
}

#[tokio::test]
async fn lists_are_frozen_as_they_are_at_the_last_word() {
    bounded(async {
        let (site, token, source) = site().await;
        let control = site.control();
        let starred = async || is_starred(&site.read(SOURCES, &token).await, &source);
        control.apply(Command::Unstar { source: source.clone() }).unwrap();
        control.apply(Command::FreezeLists).unwrap();
        control.apply(Command::Star { source: source.clone() }).unwrap();
        assert_eq!(starred().await, false);
        control.apply(Command::FreezeLists).unwrap();
        control.apply(Command::Unstar { source: source.clone() }).unwrap();
        assert_eq!(starred().await, true);
        for _ in 0..2 {
            control.apply(Command::ThawLists).unwrap();
            assert_eq!(starred().await, false);
        }
    })
    .await;
}

#[tokio::test]
async fn a_held_list_tells_how_things_were_when_it_was_written() {
    bounded(async {
        let (site, token, source) = site().await;
        let control = site.control();
        control.apply(Command::Unstar { source: source.clone() }).unwrap();
        let rule = control.add_fault(Fault::new(Matching::path(SOURCES), FaultAct::HoldAnswer).times(1)).unwrap();
        let held = while_held(&site, &token, async {
            assert_eq!(star(&site, &token, &source).send().await.unwrap().status(), 201);
            let now = site.read(SOURCES, &token).await;
            assert_eq!(is_starred(&now, &source), true);
            let held = site.control().requests().into_iter().find(|request| request.held).unwrap();
            assert_eq!((held.path.as_str(), held.status, held.ended), (SOURCES, Some(200), None));
            control.apply(Command::RemoveFault { id: rule }).unwrap();
        })
        .await;
        assert_eq!(is_starred(&held, &source), false);
        control.wait_for_log(|log| log.in_flight() == 0).await;
        assert!(control.requests().iter().all(|request| !request.held));
    })
    .await;
}

#[tokio::test]
async fn held_answers_go_out_when_all_rules_go() {
    bounded(async {
        let (site, token, _) = site().await;
        site.control().add_fault(Fault::new(Matching::path(SOURCES), FaultAct::HoldAnswer)).unwrap();
        while_held(&site, &token, async {
            site.control().apply(Command::ClearFaults).unwrap();
        })
        .await;
        site.read(SOURCES, &token).await;
    })
    .await;
}

#[tokio::test]
async fn held_answers_go_out_at_a_word_and_the_next_ones_wait() {
    bounded(async {
        let (site, token, source) = site().await;
        let control = site.control();
        control.apply(Command::Unstar { source: source.clone() }).unwrap();
        let id = control.add_fault(Fault::new(Matching::path(SOURCES), FaultAct::HoldAnswer)).unwrap();
        for starred in [false, true] {
            let held = while_held(&site, &token, async {
                control.apply(Command::Star { source: source.clone() }).unwrap();
                control.apply(Command::ReleaseAnswers { id }).unwrap();
            })
            .await;
            assert_eq!(is_starred(&held, &source), starred);
        }
        let unknown = Command::ReleaseAnswers { id: id + 1 };
        assert_eq!(control.apply(unknown), Err(ControlError::NoFault(id + 1)));
    })
    .await;
}

#[tokio::test]
async fn the_answer_of_an_act_can_be_held_and_the_act_is_done() {
    bounded(async {
        let (site, token, source) = site().await;
        let control = site.control();
        control.apply(Command::Unstar { source: source.clone() }).unwrap();
        control.add_fault(Fault::new(Matching::method("POST", "/**"), FaultAct::HoldAnswer)).unwrap();
        let (answer, ()) = tokio::join!(star(&site, &token, &source).send(), async {
            control.wait_for_log(|log| log.held() == 1).await;
            assert_eq!(is_starred(&site.read(SOURCES, &token).await, &source), true);
            control.apply(Command::ClearFaults).unwrap();
        });
        assert_eq!(answer.unwrap().status(), 201);
    })
    .await;
}

#[tokio::test]
async fn a_held_answer_ends_with_its_client_and_with_the_server() {
    bounded(async {
        let (site, token, source) = site().await;
        let control = site.control().clone();
        control.add_fault(Fault::new(Matching::path("/**"), FaultAct::HoldAnswer)).unwrap();
        tokio::select! {
            answer = site.read(SOURCES, &token) => panic!("answered: {answer:?}"),
            () = control.wait_for_log(|log| log.held() == 1) => {}
        }
        control.wait_for_log(|log| log.in_flight() == 0).await;
        let request = star(&site, &token, &source);
        let Site { server, .. } = site;
        let (answer, ()) = tokio::join!(request.send(), async {
            control.wait_for_log(|log| log.held() == 1).await;
            server.stop().await;
        });
        assert!(answer.is_err());
        assert_eq!(control.with_log(RequestLog::in_flight), 0);
    })
    .await;
}

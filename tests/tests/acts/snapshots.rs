//! Snapshots that tell of the time before an act: in whatever order things happen, nothing goes back.

use staging::environment::{Environment, Watch};
use staging::server::{Change, Command, Matching};

use crate::support::*;

/// What happens to an act, and to a snapshot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Step {
    /// The journalist acts.
    Done,
    /// The server does it.
    Accepted,
    /// The client hears of that.
    Heard,
    /// The server makes the lists.
    Taken,
    /// The client applies them.
    Applied,
}

/// Every order of the steps in which an act is done, accepted and heard of, and a snapshot is taken before it is applied.
fn orders() -> Vec<[Step; 5]> {
    let mut orders = Vec::new();
    for applied in 1..5 {
        for taken in 0..applied {
            let mut own = [Step::Done, Step::Accepted, Step::Heard].into_iter();
            orders.push(std::array::from_fn(|at| match at {
                at if at == taken => Step::Taken,
                at if at == applied => Step::Applied,
                _ => own.next().unwrap(),
            }));
        }
    }
    orders
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Star,
    Unstar,
    Seen,
    DeleteSource,
    DeleteItem,
}

/// What an act is about.
#[derive(Debug)]
struct Target {
    kind: Kind,
    source: String,
    /// A message of that source's that nobody has seen.
    message: String,
}

impl Target {
    fn command(&self) -> Vec<&str> {
        let (source, message) = (self.source.as_str(), self.message.as_str());
        match self.kind {
            Kind::Star => vec!["star", source],
            Kind::Unstar => vec!["unstar", source],
            Kind::Seen => vec!["seen", source, message],
            Kind::DeleteSource => vec!["delete", "source", source, "--yes"],
            Kind::DeleteItem => vec!["delete", "item", message, "--yes"],
        }
    }

    fn request(&self) -> Matching {
        let path = format!("/api/v1/sources/{}", self.source);
        match self.kind {
            Kind::Star => Matching::method("POST", &format!("{path}/add_star")),
            Kind::Unstar => Matching::method("DELETE", &format!("{path}/remove_star")),
            Kind::Seen => Matching::method("POST", "/api/v1/seen"),
            Kind::DeleteSource => Matching::method("DELETE", &path),
            Kind::DeleteItem => Matching::method("DELETE", &format!("{path}/submissions/{}", self.message)),
        }
    }

    fn change(&self, environment: &Environment) -> Change {
        let (source, submission) = (self.source.as_str().into(), self.message.as_str().into());
        let marlow = |world: &staging::server::World| world.journalist_named("marlow").unwrap().id.clone();
        match self.kind {
            Kind::Star => Change::StarSet { source },
            Kind::Unstar => Change::StarRemoved { source },
            Kind::Seen => {
                Change::SubmissionSeen { submission, journalist: environment.server().control().with_world(marlow) }
            }
            Kind::DeleteSource => Change::SourceDeleted { source },
            Kind::DeleteItem => Change::SubmissionDeleted { submission },
        }
    }

    /// Whether the act shows. `gone` says that what is deleted must not be there any more.
    async fn shows(&self, environment: &Environment, gone: bool) -> bool {
        let deleted = |shown| shown == if gone { Shown::Gone } else { Shown::BeingDeleted };
        match self.kind {
            Kind::Star => source(environment, &self.source).await.unwrap()["starred"] == true,
            Kind::Unstar => source(environment, &self.source).await.unwrap()["starred"] == false,
            Kind::Seen => item(environment, &self.source, &self.message).await.unwrap()["unread"] == false,
            Kind::DeleteSource => deleted(source_shows(environment, &self.source).await),
            Kind::DeleteItem => deleted(item_shows(environment, &self.source, &self.message).await),
        }
    }
}

/// Lets one act and one snapshot happen in this order, and looks after each step.
async fn happen_in(
    order: [Step; 5],
    environment: &Environment,
    watch: &mut Watch,
    target: &Target,
    occupants: &[(String, String)],
) {
    let place = |step| order.iter().position(|other| *other == step).unwrap();
    // The row is about an object that the snapshot does not list any more, or shows done: it ends with the snapshot.
    let told_by_snapshot = place(Step::Accepted) < place(Step::Taken) && place(Step::Applied) < place(Step::Heard);
    let at_once = place(Step::Accepted) == place(Step::Done) + 1;
    let (mut occupied, mut rule, mut snapshot, mut number) = (None, None, None, 0);
    for (at, step) in order.into_iter().enumerate() {
        match step {
            Step::Done if at_once => {
                rule = Some(hold(environment, target.request()));
                number = act(environment, &target.command()).await;
            }
            Step::Done => {
                occupied = Some(occupy(environment, occupants).await);
                number = act(environment, &target.command()).await;
                assert_eq!(queued(environment, number).await.unwrap()["state"], "waiting");
            }
            Step::Accepted => {
                let held = *rule.get_or_insert_with(|| hold(environment, target.request()));
                for occupant in occupied.take().into_iter().flatten() {
                    release(environment, occupant);
                }
                until_held(environment, held, 1).await;
            }
            Step::Heard => {
                let held = rule.take().unwrap();
                release(environment, held);
                if told_by_snapshot {
                    let over = |log: &staging::server::RequestLog| {
                        log.requests().any(|one| one.fault == Some(held) && one.ended.is_some())
                    };
                    until_log(environment, over).await;
                } else {
                    until_act(watch, number, "confirmed").await;
                }
            }
            Step::Taken => {
                if place(Step::Accepted) > at {
                    // What the snapshot says of them is new, so that it is written over what is there.
                    message(environment, &target.source);
                    let (item, journalist) = (target.message.as_str().into(), "ternberg".to_owned());
                    happens(environment, Command::MarkSeen { item, journalist });
                }
                snapshot = Some(Snapshot::take(environment).await);
            }
            Step::Applied => snapshot.take().unwrap().apply(environment).await,
        }
        let gone = place(Step::Heard) <= at || told_by_snapshot && place(Step::Applied) <= at;
        assert_eq!(target.shows(environment, gone).await, place(Step::Done) <= at, "{order:?} after {step:?}");
    }
    assert_eq!(changes(environment).of(&target.change(environment)), 1, "{order:?}");
}

async fn never_goes_back(kind: Kind) {
    let orders = orders();
    assert_eq!(orders.len(), 10);
    let environment = signed_in(12, 2).await;
    let mut sources = ids(&environment).await;
    let occupants = sources.split_off(orders.len());
    for id in &sources {
        let source = id.as_str().into();
        match kind {
            Kind::Unstar => happens(&environment, Command::Star { source }),
            Kind::Star | Kind::Seen | Kind::DeleteSource | Kind::DeleteItem => {
                happens(&environment, Command::Unstar { source })
            }
        };
    }
    let messages: Vec<_> = sources.iter().map(|source| message(&environment, source)).collect();
    let occupying: Vec<Vec<_>> = orders
        .iter()
        .map(|_| occupants.iter().map(|source| (source.clone(), message(&environment, source))).collect())
        .collect();
    environment.json(&["refresh"], "").await.unwrap();
    let mut watch = environment.watch().await.unwrap();
    let mut targets = Vec::new();
    for (((order, source), message), occupants) in orders.into_iter().zip(sources).zip(messages).zip(occupying) {
        let target = Target { kind, source, message };
        happen_in(order, &environment, &mut watch, &target, &occupants).await;
        targets.push(target);
    }
    // The next snapshot tells of all of them, and the rows go.
    environment.json(&["refresh"], "").await.unwrap();
    for target in targets {
        assert!(target.shows(&environment, true).await, "{target:?}");
    }
    assert_eq!(queue(&environment).await, [] as [serde_json::Value; 0]);
    assert_eq!(changes(&environment).most(), 1);
    environment.stop().await.unwrap();
}

/// Case S5.
#[tokio::test(flavor = "multi_thread")]
async fn s5_a_star_never_goes_back() {
    never_goes_back(Kind::Star).await;
}

/// Case S5.
#[tokio::test(flavor = "multi_thread")]
async fn s5_a_star_that_was_taken_away_never_comes_back() {
    never_goes_back(Kind::Unstar).await;
}

/// Case S5.
#[tokio::test(flavor = "multi_thread")]
async fn s5_what_was_seen_is_never_unread_again() {
    never_goes_back(Kind::Seen).await;
}

/// Case S5.
#[tokio::test(flavor = "multi_thread")]
async fn s5_a_deleted_source_is_never_ordinary_again() {
    never_goes_back(Kind::DeleteSource).await;
}

/// Case S5.
#[tokio::test(flavor = "multi_thread")]
async fn s5_a_deleted_item_is_never_ordinary_again() {
    never_goes_back(Kind::DeleteItem).await;
}

//! The outbox against the reference, through whatever may happen.
//!
//! What is tried are short lives: acts, attempts that end in every way, snapshots that are old when they are applied, lists
//! that do not fit together, colleagues, logins, crashes, a clock that jumps. After each step every journalist sees just
//! what they must; at the end, with a server that answers, nothing is lost and nothing was done twice.
//!
//! One thing is assumed: a request whose attempt has ended, because of its answer, a logout or a crash, is performed before
//! that or never.

use std::cell::RefCell;
use std::time::Duration;

use control::Deal;
use proptest::prelude::*;
use rusqlite::Connection;

use super::checks::Look;
use super::machine::{Ending, Machine, Opening};
use super::reference::{Entry, Status};
use super::server::{By, FOR_EVER, Server};
use super::world::{Damage, Itm, LeftOut, Src, What, Who, Wish, new_store};

/// How many lives each test tries; more where PROPTEST_CASES says so.
const CASES: u32 = 1_000;

#[derive(Debug, Clone, Copy)]
enum Op {
    Login(Who),
    Logout,
    Act(Pick),
    Choose {
        pick: usize,
        opening: Opening,
    },
    Begin(usize),
    Perform {
        attempt: usize,
        mask: u8,
        linger: u8,
    },
    End {
        attempt: usize,
        ending: Ending,
    },
    /// From the choice to the answer, of whatever can be sent.
    Send {
        pick: usize,
        mask: u8,
        linger: u8,
        ending: Ending,
    },
    CloseCall(usize),
    Crash,
    Clock(i64),
    AskSnapshot,
    ListSources,
    ListItems,
    Apply,
    Sync,
    /// A snapshot whose lists have an entry without an id, or one that cannot be read, or leave something out.
    Damaged(DamagePick),
    /// A reply is sent and nobody knows what became of it; so many lists cannot say either.
    Unsure {
        source: u16,
        stored: bool,
        lists: u8,
        retry: bool,
    },
    /// Time passes, with syncs.
    Syncs,
    /// An act that is sent at once and listed for ever if it is a deletion; time passes.
    Overdue(Pick),
    /// Something is sent, nobody knows what became of it, and dom0 refuses to let it be sent again.
    Barred(usize),
    /// While something is being sent dom0 refuses the next call.
    BarredMeanwhile(usize),
    Colleague {
        who: Who,
        pick: Pick,
        linger: u8,
    },
    /// One of the replies that were written here is deleted by a colleague.
    DeleteAnswer {
        pick: usize,
        linger: u8,
    },
    /// A reply is sent and nobody knows what became of it; perhaps the server has stored it, perhaps a colleague has deleted
    /// it again; a snapshot.
    InDoubt {
        source: u16,
        stored: bool,
        deleted: bool,
    },
    /// The same, and a snapshot whose lists were read before the server stored it is applied when the attempt has ended: of
    /// itself, or with its session.
    OldLists {
        source: u16,
        stored: bool,
        login: Option<Who>,
    },
    /// A draft, or none any more.
    Draft(u16, bool),
    /// A reply is taken back, perhaps when there is another draft already.
    TakenBack(u16, bool),
    NewItem(u16),
    NewSource,
    Deal(Deal, usize),
    /// A deletion is taken back: the newest, or that of an act.
    Undo(Option<usize>),
    /// Something is deleted and taken back, perhaps later than it could be.
    DeletedAndUndone(Pick, i64),
    /// Of what the server has not deleted.
    DealNotDeleted(Deal),
    /// The server refuses something, and the user deals with what was refused last.
    Refused(usize, Deal),
}

/// What is wrong with a snapshot, by numbers that are taken modulo what there is.
#[derive(Debug, Clone, Copy)]
struct DamagePick {
    kind: u8,
    source: u16,
    item: u16,
    /// Whether the sync is made at once, or the next one is so.
    now: bool,
}

/// An act, by numbers that are taken modulo what there is.
#[derive(Debug, Clone, Copy)]
struct Pick {
    kind: u8,
    source: u16,
    /// Which of the sources or items.
    mask: u8,
    /// Whether it names also what is not there.
    stray: bool,
}

fn op() -> impl Strategy<Value = Op> {
    let small = || 0..4_usize;
    prop_oneof![
        2 => who().prop_map(Op::Login),
        1 => Just(Op::Logout),
        14 => pick().prop_map(Op::Act),
        6 => (small(), opening()).prop_map(|(pick, opening)| Op::Choose { pick, opening }),
        6 => small().prop_map(Op::Begin),
        6 => (small(), mask(), linger())
            .prop_map(|(attempt, mask, linger)| Op::Perform { attempt, mask, linger }),
        6 => (small(), ending()).prop_map(|(attempt, ending)| Op::End { attempt, ending }),
        5 => (small(), mask(), linger(), ending())
            .prop_map(|(pick, mask, linger, ending)| Op::Send { pick, mask, linger, ending }),
        1 => small().prop_map(Op::CloseCall),
        1 => Just(Op::Crash),
        3 => prop::sample::select(vec![-18_000, -600, 30, 120, 3_600, 18_000]).prop_map(Op::Clock),
        4 => Just(Op::AskSnapshot),
        3 => Just(Op::ListSources),
        3 => Just(Op::ListItems),
        4 => Just(Op::Apply),
        2 => Just(Op::Sync),
        8 => (0..8_u8, 0..4_u16, 0..8_u16, any::<bool>())
            .prop_map(|(kind, source, item, now)| Op::Damaged(DamagePick { kind, source, item, now })),
        2 => (0..4_u16, any::<bool>(), 0..5_u8, any::<bool>())
            .prop_map(|(source, stored, lists, retry)| Op::Unsure { source, stored, lists, retry }),
        1 => Just(Op::Syncs),
        2 => pick().prop_map(|pick| Op::Overdue(Pick { kind: 3 + pick.kind % 2, ..pick })),
        2 => small().prop_map(Op::Barred),
        2 => small().prop_map(Op::BarredMeanwhile),
        4 => (who(), pick(), linger()).prop_map(|(who, pick, linger)| Op::Colleague { who, pick, linger }),
        3 => (small(), linger()).prop_map(|(pick, linger)| Op::DeleteAnswer { pick, linger }),
        3 => (0..4_u16, any::<bool>(), any::<bool>())
            .prop_map(|(source, stored, deleted)| Op::InDoubt { source, stored, deleted }),
        2 => (0..4_u16, any::<bool>(), prop::option::of(who()))
            .prop_map(|(source, stored, login)| Op::OldLists { source, stored, login }),
        2 => (0..4_u16, prop::bool::weighted(0.8)).prop_map(|(source, some)| Op::Draft(source, some)),
        1 => (0..4_u16, any::<bool>()).prop_map(|(source, draft)| Op::TakenBack(source, draft)),
        2 => (0..4_u16).prop_map(Op::NewItem),
        1 => Just(Op::NewSource),
        6 => (deal(), small()).prop_map(|(deal, pick)| Op::Deal(deal, pick)),
        3 => prop::option::of(small()).prop_map(Op::Undo),
        2 => (pick(), prop::sample::select(vec![0, 5, 30, 3_600, -600]))
            .prop_map(|(pick, seconds)| Op::DeletedAndUndone(Pick { kind: 3 + pick.kind % 2, ..pick }, seconds)),
        3 => prop::sample::select(vec![Deal::Retry, Deal::Restore]).prop_map(Op::DealNotDeleted),
        3 => (small(), prop::sample::select(vec![Deal::Retry, Deal::Dismiss]))
            .prop_map(|(pick, deal)| Op::Refused(pick, deal)),
    ]
}

fn who() -> impl Strategy<Value = Who> {
    prop::sample::select(vec![Who::Anna, Who::Ben])
}

fn pick() -> impl Strategy<Value = Pick> {
    (0..8_u8, 0..4_u16, mask(), prop::bool::weighted(0.05)).prop_map(|(kind, source, mask, stray)| Pick {
        kind,
        source,
        mask,
        stray,
    })
}

fn mask() -> impl Strategy<Value = u8> {
    prop_oneof![4 => Just(u8::MAX), 1 => Just(0b0101_0101), 1 => Just(0b0011_0010), 2 => Just(1), 2 => Just(0)]
}

fn linger() -> impl Strategy<Value = u8> {
    prop_oneof![4 => Just(0), 2 => 1..5_u8, 2 => Just(FOR_EVER)]
}

fn opening() -> impl Strategy<Value = Opening> {
    prop_oneof![6 => Just(Opening::Allowed), 3 => Just(Opening::Refused), 1 => Just(Opening::Failed)]
}

fn ending() -> impl Strategy<Value = Ending> {
    prop_oneof![
        6 => Just(Ending::Answered),
        2 => Just(Ending::Fault { retry_after: None }),
        1 => Just(Ending::Fault { retry_after: Some(Duration::from_secs(300)) }),
        2 => Just(Ending::Refused),
        2 => Just(Ending::NoEffect),
        1 => Just(Ending::UsedUp),
    ]
}

fn deal() -> impl Strategy<Value = Deal> {
    prop_oneof![
        2 => Just(Deal::Retry),
        2 => Just(Deal::Cancel),
        1 => Just(Deal::Dismiss),
        1 => Just(Deal::Restore),
    ]
}

impl Machine<'_> {
    fn step(&mut self, op: Op) {
        self.now += 3_000_000;
        match op {
            Op::Login(who) => self.login(who),
            Op::Logout => self.logout(),
            Op::Act(pick) => {
                let wish = self.wish(pick);
                self.act(&wish);
            }
            Op::Choose { pick, opening } => self.choose(pick, opening),
            Op::Begin(attempt) => self.begin(self.one_of_running(attempt)),
            Op::Perform { attempt, mask, linger } => self.perform(self.one_of_running(attempt), mask, linger),
            Op::End { attempt, ending } => self.end(self.one_of_running(attempt), ending),
            Op::Send { pick, mask, linger, ending } => self.send_one(pick, mask, linger, ending),
            Op::CloseCall(pick) => {
                let closed = self.open.iter().nth(pick).copied();
                self.open.retain(|act| Some(*act) != closed);
            }
            Op::Crash => self.crash(),
            Op::Clock(seconds) => self.now = self.now.saturating_add_signed(seconds * 1_000_000),
            Op::AskSnapshot => self.ask_snapshot(),
            Op::ListSources => self.list_sources(),
            Op::ListItems => self.list_items(),
            Op::Apply => self.apply(),
            Op::Sync => self.sync(),
            Op::Damaged(pick) => {
                self.damage = self.damage_of(pick);
                if pick.now {
                    self.sync();
                }
            }
            Op::Unsure { source, stored, lists, retry } => {
                let source = self.one_of_sources(source);
                let reply = self.next_answer();
                let pick = self.answer(source);
                self.send_one(pick, if stored { u8::MAX } else { 0 }, 0, Ending::Fault { retry_after: None });
                for _ in 0..lists {
                    self.sync_with(Damage { nameless_item: Some(reply), ..Damage::default() });
                }
                if retry && let Some(act) = self.reference.entries.last().map(|entry| entry.act) {
                    self.deal(Deal::Retry, act);
                }
            }
            Op::Syncs => self.syncs(),
            Op::Overdue(pick) => {
                let wish = self.wish(pick);
                self.act(&wish);
                self.send_one(usize::from(pick.mask), u8::MAX, FOR_EVER, Ending::Answered);
                self.syncs();
            }
            Op::Barred(pick) => {
                self.send_one(pick, u8::MAX, 0, Ending::Fault { retry_after: None });
                self.now += 600_000_000;
                self.open.clear();
                self.choose(pick, Opening::Refused);
            }
            Op::BarredMeanwhile(pick) => {
                let before = self.running.len();
                self.choose(pick, Opening::Allowed);
                self.begin(before);
                self.open.clear();
                self.choose(pick, Opening::Refused);
                self.perform(before, u8::MAX, 0);
                self.end(before, Ending::Answered);
            }
            Op::Colleague { who, pick, linger } => {
                for what in self.whats(pick) {
                    self.server.perform(what, By::Colleague(who), linger);
                }
            }
            Op::DeleteAnswer { pick, linger } => {
                let answers = self.server.answers();
                if let Some((source, item)) = answers.get(pick) {
                    self.server.perform(What::DeleteItem(*source, *item), By::Colleague(Who::Ben), linger);
                }
            }
            Op::InDoubt { source, stored, deleted } => {
                let source = self.one_of_sources(source);
                let reply = self.next_answer();
                let pick = self.answer(source);
                let ending = Ending::Fault { retry_after: None };
                self.send_one(pick, if stored { u8::MAX } else { 0 }, 0, ending);
                if deleted {
                    self.server.perform(What::DeleteItem(source, reply), By::Colleague(Who::Anna), 0);
                }
                self.sync();
            }
            Op::OldLists { source, stored, login } => {
                self.sync.take();
                let (pick, before) = (self.answer(self.one_of_sources(source)), self.running.len());
                self.choose(pick, Opening::Allowed);
                self.begin(before);
                self.ask_snapshot();
                self.list_sources();
                self.list_items();
                self.perform(before, if stored { u8::MAX } else { 0 }, 0);
                match login {
                    Some(who) => self.login(who),
                    None => self.end(before, Ending::Fault { retry_after: None }),
                }
                self.apply();
            }
            Op::TakenBack(source, draft) => {
                self.answer(self.one_of_sources(source));
                if draft {
                    self.draft(self.one_of_sources(source), Some("another"));
                }
                if let Some(act) = self.reference.entries.last().map(|entry| entry.act) {
                    self.deal(Deal::Cancel, act);
                }
            }
            Op::Draft(source, some) => {
                let (source, text) = (self.one_of_sources(source), format!("draft at {}", self.now));
                self.draft(source, some.then_some(text.as_str()));
            }
            Op::NewItem(source) => {
                self.server.add_item(Src(source));
            }
            Op::NewSource => {
                if self.server.sources() < 4 {
                    self.server.add_source(false);
                }
            }
            Op::Deal(deal, pick) => {
                let mut acts: Vec<_> = self.reference.entries.iter().map(|entry| entry.act).collect();
                acts.dedup();
                // One act too many: there is none of this number.
                acts.push(10_000);
                self.deal(deal, acts[pick % acts.len()]);
            }
            Op::Undo(None) => drop(self.undo(&[])),
            Op::Undo(Some(pick)) => {
                let acts: Vec<_> = self.reference.entries.iter().map(|entry| entry.act).chain([10_000]).collect();
                self.undo(&[acts[pick % acts.len()]]);
            }
            Op::DeletedAndUndone(pick, seconds) => {
                let wish = self.wish(pick);
                self.act(&wish);
                self.now = self.now.saturating_add_signed(seconds * 1_000_000);
                self.send_one(usize::from(pick.mask), u8::MAX, 0, Ending::Answered);
                self.undo(&[]);
            }
            Op::DealNotDeleted(deal) => {
                let not_deleted = |entry: &&Entry| matches!(entry.status, Status::Confirmed { told: true, .. });
                if let Some(act) = self.reference.entries.iter().find(not_deleted).map(|entry| entry.act) {
                    self.deal(deal, act);
                }
            }
            Op::Refused(pick, deal) => {
                self.send_one(pick, 0, 0, Ending::Refused);
                let refused = |entry: &&Entry| matches!(entry.status, Status::Refused { .. });
                if let Some(act) = self.reference.entries.iter().rfind(refused).map(|entry| entry.act) {
                    self.deal(deal, act);
                }
            }
        }
    }

    fn send_one(&mut self, pick: usize, mask: u8, linger: u8, ending: Ending) {
        let before = self.running.len();
        self.choose(pick, Opening::Allowed);
        if self.running.len() > before {
            self.begin(before);
            self.perform(before, mask, linger);
            self.end(before, ending);
        }
    }

    fn syncs(&mut self) {
        for _ in 0..3 {
            self.now += 1_500_000_000;
            self.sync();
        }
    }

    fn one_of_running(&self, pick: usize) -> usize {
        pick.checked_rem(self.running.len()).unwrap_or(0)
    }

    /// What the server is asked for by somebody else.
    fn whats(&self, pick: Pick) -> Vec<What> {
        match self.wish(pick) {
            Wish::Star(sources) => sources.into_iter().map(What::Star).collect(),
            Wish::Unstar(sources) => sources.into_iter().map(What::Unstar).collect(),
            Wish::Seen(source, items) => items.into_iter().map(|item| What::Seen(source, item)).collect(),
            // A colleague deletes one thing, or there would soon be nothing left.
            Wish::DeleteSources(sources) => sources.into_iter().take(1).map(What::DeleteSource).collect(),
            Wish::DeleteItems(source, items) => {
                items.into_iter().take(1).map(|item| What::DeleteItem(source, item)).collect()
            }
            // Of a colleague's replies nothing is expected.
            Wish::Reply(..) => Vec::new(),
        }
    }

    fn damage_of(&self, pick: DamagePick) -> Damage {
        let source = self.one_of_sources(pick.source);
        let items: Vec<_> = self.reference.items_of(source).collect();
        let item = items.get(usize::from(pick.item) % items.len().max(1)).copied();
        let left_out = |itself, items| Some(LeftOut { source, itself, items });
        match pick.kind {
            0 => Damage { nameless_source: Some(source), ..Damage::default() },
            1 => Damage { nameless_item: item.or(Some(Itm(1))), ..Damage::default() },
            2 => Damage { unreadable_source: Some(source), ..Damage::default() },
            3 => Damage { unreadable_item: item, ..Damage::default() },
            4 => Damage { nameless_source: Some(source), unreadable_item: item, ..Damage::default() },
            5 => Damage { left_out: left_out(true, false), ..Damage::default() },
            6 => Damage { left_out: left_out(false, true), ..Damage::default() },
            _ => Damage { left_out: left_out(true, true), ..Damage::default() },
        }
    }

    fn one_of_sources(&self, pick: u16) -> Src {
        Src(pick % u16::try_from(self.server.sources()).unwrap())
    }

    /// Writes a reply to a source; gives which batch of those that can be sent is about that source.
    fn answer(&mut self, source: Src) -> usize {
        self.act(&Wish::Reply(source, self.next_answer()));
        self.ready().iter().position(|batch| batch.source == source.id()).unwrap_or(0)
    }

    /// A reply of an id that was not used before.
    fn next_answer(&self) -> Itm {
        let replies = self.rows.values().filter(|(_, what)| what.reply().is_some()).count();
        Itm::answer(u16::try_from(replies).unwrap())
    }

    /// The reply that was written first, once more: the list may have left out meanwhile that it is there.
    fn first_answer(&self) -> Option<Wish> {
        self.rows.values().find_map(|(_, what)| Some(Wish::Reply(what.source(), what.reply()?)))
    }

    fn wish(&self, pick: Pick) -> Wish {
        let sources = u16::try_from(self.server.sources()).unwrap();
        let source = Src(pick.source % sources);
        let chosen = |at: usize| pick.mask & (1 << (at % 8)) != 0;
        let mut named: Vec<_> = if pick.mask.count_ones() > 1 {
            (0..sources).map(Src).enumerate().filter(|(at, _)| chosen(*at)).map(|(_, source)| source).collect()
        } else {
            vec![source]
        };
        let view = self.reference.view(self.signed_in.unwrap_or(Who::Anna));
        let of_source = view.items.iter().filter(|(_, item)| item.source == source).map(|(item, _)| *item);
        let mut items: Vec<_> = of_source.enumerate().filter(|(at, _)| chosen(*at)).map(|(_, item)| item).collect();
        if pick.stray {
            named.push(Src(sources));
            items.push(Itm(pick.source * 3));
            items.sort();
        }
        match pick.kind {
            0 => Wish::Star(named),
            1 => Wish::Unstar(named),
            2 => Wish::Seen(source, items),
            3 => Wish::DeleteSources(if pick.stray { named } else { vec![source] }),
            4 => Wish::DeleteItems(source, items),
            // To a source that is not there, or once more.
            5 if pick.stray => Wish::Reply(Src(sources), self.next_answer()),
            6 if pick.stray => self.first_answer().unwrap_or_else(|| Wish::Reply(source, self.next_answer())),
            _ => Wish::Reply(source, self.next_answer()),
        }
    }
}

/// For how many seconds a deletion can be taken back: not at all, for a few steps, for most of a life.
fn grace() -> impl Strategy<Value = u64> {
    prop::sample::select(vec![0, 10, 120])
}

/// A life: the stars and numbers of items of its sources, and what happens.
fn life() -> impl Strategy<Value = (Vec<(bool, usize)>, Vec<Op>)> {
    let sources = prop::collection::vec((any::<bool>(), 0..4_usize), 2..4);
    (sources, prop::collection::vec(op(), 1..32))
}

thread_local! {
    static STORE: RefCell<Connection> = {
        // One large block that comes and goes, and the allocator keeps what is freed: SQLite's short-lived tables are the
        // most of the work here, and would be mapped anew each time.
        drop(std::hint::black_box(vec![0_u8; 8 << 20]));
        RefCell::new(new_store())
    };
}

/// Lives through it in a store that is used again, since making one takes longer than a life.
fn live(sources: &[(bool, usize)], dom0_asks: bool, grace: u64, ops: &[Op]) {
    STORE.with_borrow_mut(|store| {
        store
            .execute_batch(
                "DELETE FROM outbox; DELETE FROM sqlite_sequence; DELETE FROM server_source;
                 DELETE FROM server_submission; DELETE FROM server_reply; DELETE FROM local_journalist;
                 DELETE FROM local_item; DELETE FROM local_draft; DELETE FROM local_key;
                 DELETE FROM local_removed_source; DELETE FROM local_removed_item; DELETE FROM local_shown;",
            )
            .unwrap();
        let mut server = Server::default();
        for (starred, items) in sources {
            let source = server.add_source(*starred);
            for _ in 0..*items {
                server.add_item(source);
            }
        }
        let mut machine = Machine::new(store, server, dom0_asks);
        machine.grace = grace * 1_000_000;
        machine.login(Who::Anna);
        machine.sync();
        for op in ops {
            machine.step(*op);
            machine.check(Look::Quick);
        }
        // Front ends are told what the views say, in more words and more slowly.
        machine.check(match ops.len() % 6 {
            0 => Look::Close(Who::Anna),
            1 => Look::Close(Who::Ben),
            _ => Look::Quick,
        });
        // The lists are good from here on.
        machine.damage = Damage::default();
        for who in Who::BOTH {
            machine.work_off(who);
            machine.check(Look::Quick);
        }
        // What is listed a few times more, and what was restored last.
        for _ in 0..5 {
            machine.sync();
        }
        machine.check(Look::Quick);
        machine.check_end();
    });
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: ProptestConfig::default().cases.max(CASES),
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn nothing_is_lost_or_done_twice_or_goes_back((sources, ops) in life(), grace in grace()) {
        live(&sources, false, grace, &ops);
    }

    #[test]
    fn nothing_is_lost_or_done_twice_or_goes_back_where_dom0_asks((sources, ops) in life(), grace in grace()) {
        live(&sources, true, grace, &ops);
    }
}

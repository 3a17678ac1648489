//! The shipped policy, asked about every call of a whole workstation.

use std::collections::{BTreeMap, BTreeSet};

use protocol::Scope;
use staging::qrexec::policy::{Call, Decision, Policy, Refusal, ServiceTarget};
use staging::qrexec::system::{Qube, QubeKind, QubeName, System};

const OURS: &str = "31-splitdrop.policy";
const SHIPPED: &str = include_str!("../../../qubes-rpc/dom0/31-splitdrop.policy");
const STRICT: &str = include_str!("../../../qubes-rpc/dom0/strict/31-splitdrop.policy");
/// What a workstation has besides.
const THEIRS: [(&str, &str); 3] = [
    ("31-securedrop-workstation.policy", include_str!("../../policy/31-securedrop-workstation.policy")),
    ("32-securedrop-workstation.policy", include_str!("../../policy/32-securedrop-workstation.policy")),
    ("35-compat.policy", include_str!("../../policy/35-compat.policy")),
];
/// Services of others, with arguments.
const SERVICES: [(&str, &[&str]); 9] = [
    ("qubes.Gpg", &["", "x"]),
    ("qubes.Gpg2", &["", "x"]),
    ("qubes.OpenInVM", &["", "view-only"]),
    ("qubes.Filecopy", &[""]),
    ("qubes.VMShell", &[""]),
    ("securedrop.Proxy", &["", "session"]),
    ("securedrop.Log", &[""]),
    ("admin.vm.List", &[""]),
    ("admin.vm.Remove", &[""]),
];

/// A workstation with the qubes that a Qubes OS has besides, and a disposable that shows a document.
fn workstation() -> System {
    let mut system = System::workstation();
    let mut add = |name: &str, qube| system.qubes.insert(QubeName::try_new(name).unwrap(), qube);
    for name in ["sys-usb", "sys-net", "sys-firewall", "work", "vault"] {
        let default_dispvm = Some(QubeName::try_new("default-dvm").unwrap());
        add(name, Qube { default_dispvm, ..Qube::new(QubeKind::App) });
    }
    add("default-dvm", Qube { template_for_dispvms: true, ..Qube::new(QubeKind::App) });
    let default_dispvm = Some(QubeName::try_new("sd-viewer").unwrap());
    let shows = Qube { default_dispvm, ..Qube::new(QubeKind::Disposable) };
    add("disp1234", shows.tagged("sd-workstation").tagged("sd-viewer-vm"));
    let devices = system.qubes.get_mut("sd-devices").unwrap();
    devices.tags.insert("sd-export-target".to_owned());
    system
}

/// Every call that anybody could make: who, what, where to.
fn every_call(system: &System) -> Vec<Call> {
    let scopes: Vec<_> = Scope::ALL.iter().map(Scope::to_string).collect();
    let odd = ["", "health", "x", "delete+", "delete.", "sessions", "-delete", "Delete", "session+delete"];
    let ours = scopes.iter().map(String::as_str).chain(odd).map(|argument| ("splitdrop.Proxy", argument));
    let others =
        SERVICES.iter().flat_map(|(service, arguments)| arguments.iter().map(|argument| (*service, *argument)));
    let services: Vec<_> = ours.chain(others).collect();
    let words = ["", "dom0", "@adminvm", "@dispvm", "@dispvm:sd-viewer", "@dispvm:default-dvm", "no-such-vm"];
    let targets: Vec<_> = system.qubes.keys().map(QubeName::as_str).chain(words).collect();
    let mut calls = Vec::new();
    for source in system.qubes.keys() {
        for (service, argument) in &services {
            calls.extend(targets.iter().map(|target| Call {
                service: (*service).to_owned(),
                argument: (*argument).to_owned(),
                source: source.clone(),
                target: (*target).to_owned(),
            }));
        }
    }
    calls
}

fn name(call: &Call) -> String {
    let target = if call.target.is_empty() { "-" } else { &call.target };
    format!("{} {} {target}", call.source, call.full_name())
}

fn shown(target: &ServiceTarget) -> String {
    match target {
        ServiceTarget::AdminVm => "dom0".to_owned(),
        ServiceTarget::Qube(name) => name.to_string(),
        ServiceTarget::NewDisposable(template) => format!("new {template}"),
    }
}

/// What may be called, as `SOURCE SERVICE+ARGUMENT TARGET: allow QUBE`.
fn edge(call: &Call, decision: &Decision) -> Option<String> {
    let verdict = match decision {
        Decision::Allow { target, user: None, notify: false, autostart: true } => format!("allow {}", shown(target)),
        Decision::Ask { targets, default_target, user: None, notify: false, autostart: true } => {
            let targets: Vec<_> = targets.iter().map(shown).collect();
            let chosen = default_target.as_ref().map_or_else(|| "none".to_owned(), shown);
            format!("ask {}, {chosen} first", targets.join(" or "))
        }
        Decision::Deny { .. } => return None,
        other => panic!("an option that nobody expects: {other:?}"),
    };
    Some(format!("{}: {verdict}", name(call)))
}

fn policy(files: &[(&str, &str)]) -> Policy {
    Policy::parse(files).unwrap()
}

fn edges(policy: &Policy) -> BTreeSet<String> {
    let system = workstation();
    every_call(&system).iter().filter_map(|call| edge(call, &policy.evaluate(call, &system))).collect()
}

/// The calls that the shipped policy allows: these and no others.
fn allowed(delete: &str) -> BTreeSet<String> {
    let scopes = ["session", "metadata", "mark", "download", "reply"];
    let scopes = scopes.map(|scope| format!("sd-app splitdrop.Proxy+{scope} sd-proxy: allow sd-proxy"));
    let others = [
        &format!("sd-app splitdrop.Proxy+delete sd-proxy: {delete}"),
        "sd-app qubes.Gpg2+ sd-gpg: allow sd-gpg",
        "sd-app qubes.Gpg2+ -: allow sd-gpg",
        // Qubes takes a name that it does not know for none.
        "sd-app qubes.Gpg2+ no-such-vm: allow sd-gpg",
        "sd-app qubes.OpenInVM+ @dispvm:sd-viewer: allow new sd-viewer",
        // Its disposables are those.
        "sd-app qubes.OpenInVM+ @dispvm: allow new sd-viewer",
        "sd-app qubes.OpenInVM+ sd-devices: allow sd-devices",
        "sd-app qubes.OpenInVM+ sd-printers: allow sd-printers",
    ];
    scopes.into_iter().chain(others.map(str::to_owned)).collect()
}

fn beside(text: &'static str) -> Vec<(&'static str, &'static str)> {
    THEIRS.into_iter().chain([(OURS, text)]).collect()
}

#[test]
fn alone_the_policy_allows_exactly_these_calls() {
    assert_eq!(edges(&policy(&[(OURS, SHIPPED)])), allowed("allow sd-proxy"));
    assert_eq!(edges(&policy(&[(OURS, STRICT)])), allowed("ask sd-proxy, sd-proxy first"));
}

#[test]
fn beside_a_workstations_files_it_allows_the_same_and_changes_nothing_of_theirs() {
    let system = workstation();
    let theirs = policy(&THEIRS);
    for (text, delete) in [(SHIPPED, "allow sd-proxy"), (STRICT, "ask sd-proxy, sd-proxy first")] {
        let both = policy(&beside(text));
        let mut expected = edges(&theirs);
        assert!(expected.iter().any(|edge| edge.contains("work splitdrop.Proxy")), "theirs are careless about ours");
        expected.retain(|edge| !edge.contains("splitdrop.Proxy"));
        expected.extend(allowed(delete));
        assert_eq!(edges(&both), expected);
        // Also how a call is refused stays theirs, the word about it included.
        let ours = allowed(delete);
        let ours: BTreeSet<_> = ours.iter().filter_map(|edge| edge.split_once(": ")).map(|(call, _)| call).collect();
        for call in every_call(&system).iter().filter(|call| call.service != "splitdrop.Proxy") {
            if !ours.contains(name(call).as_str()) {
                assert_eq!(both.evaluate(call, &system), theirs.evaluate(call, &system), "{}", name(call));
            }
        }
    }
}

/// The files of a workstation allow what the client calls, so a rule of ours more is not what lets it.
#[test]
fn each_file_of_theirs_decides_something_in_the_test() {
    let system = workstation();
    let theirs = policy(&THEIRS);
    let mut decided = BTreeMap::<String, usize>::new();
    for call in every_call(&system) {
        if let Decision::Deny { reason: Refusal::Denied(place), .. } = theirs.evaluate(&call, &system) {
            *decided.entry(place.file).or_default() += 1;
        }
    }
    assert_eq!(decided.keys().collect::<Vec<_>>(), [THEIRS[0].0, THEIRS[1].0]);
    let found = edges(&theirs);
    for edge in [
        "sd-app qubes.Gpg+ sd-gpg: allow sd-gpg",
        "work qubes.Gpg+ vault: ask vault, vault first",
        "work qubes.OpenInVM+ @dispvm: allow new default-dvm",
        "sys-usb admin.vm.List+ dom0: allow dom0",
    ] {
        assert!(found.contains(edge), "{edge}: {found:#?}");
    }
}

#[test]
fn a_call_of_a_qube_to_itself_is_refused_without_a_word_and_all_others_with_one() {
    let system = workstation();
    let policy = policy(&[(OURS, SHIPPED)]);
    for call in every_call(&system).iter().filter(|call| call.service == "splitdrop.Proxy") {
        let to_itself = call.source.as_str() == call.target && ["sd-app", "sd-proxy"].contains(&call.target.as_str());
        if let Decision::Deny { notify, reason } = policy.evaluate(call, &system) {
            assert_eq!(notify, !to_itself, "{}", name(call));
            assert!(matches!(reason, Refusal::Denied(_)), "{}: {reason}", name(call));
        }
    }
}

#[test]
fn the_strict_variant_differs_in_deletions_alone() {
    let rule = |line: &str| line.starts_with("splitdrop.Proxy   +delete ");
    let block = |text: &'static str| {
        let blocks: Vec<_> = text.split("\n\n").collect();
        let deletes = blocks.iter().position(|block| block.lines().any(rule)).unwrap();
        (blocks, deletes)
    };
    let (mut shipped, mut strict) = (block(SHIPPED), block(STRICT));
    assert_eq!(shipped.1, strict.1);
    let (allows, asks) = (shipped.0.remove(shipped.1), strict.0.remove(strict.1));
    assert_eq!(shipped.0, strict.0);
    let rules = |block: &'static str| block.lines().filter(|line| !line.starts_with('#')).collect::<Vec<_>>();
    let (allows, asks) = (rules(allows), rules(asks));
    assert_eq!((allows.len(), asks.len()), (1, 1));
    assert_eq!(asks[0].split_whitespace().skip(4).collect::<Vec<_>>(), ["ask", "default_target=sd-proxy"]);
    assert_eq!(
        asks[0].split_whitespace().take(4).collect::<Vec<_>>(),
        allows[0].split_whitespace().take(4).collect::<Vec<_>>()
    );
}

/// The rule for split-gpg is there, one character away.
#[test]
fn the_other_way_to_the_key_is_one_character_away() {
    for text in [SHIPPED, STRICT] {
        assert_eq!(text.matches("\n#qubes.Gpg ").count(), 1);
        let text = text.replace("\n#qubes.Gpg ", "\nqubes.Gpg ");
        let found = edges(&policy(&[(OURS, &text)]));
        let before = edges(&policy(&[(OURS, SHIPPED)]));
        let added: Vec<_> = found.iter().filter(|edge| !before.contains(*edge) && !edge.contains("+delete ")).collect();
        assert_eq!(added, ["sd-app qubes.Gpg+ sd-gpg: allow sd-gpg"]);
    }
}

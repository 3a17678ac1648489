use super::*;
use crate::qrexec::system::{Qube, QubeKind};

const SHIPPED: &str = include_str!("../../../../qubes-rpc/dom0/31-splitdrop.policy");

fn name(text: &str) -> QubeName {
    QubeName::try_new(text).expect("a VM's name")
}

fn system() -> System {
    let mut system = System::workstation();
    let halted = Qube { power: Power::Halted, ..Qube::new(QubeKind::Standalone) };
    system.qubes.insert(name("vault"), halted);
    let template = Qube { template_for_dispvms: true, ..Qube::new(QubeKind::App) };
    system.qubes.insert(name("net-dvm"), template.tagged("net"));
    system
}

/// `SERVICE ARGUMENT SOURCE TARGET`, the argument with its plus, `-` for no target.
fn call(words: &str) -> Call {
    let words: Vec<&str> = words.split(' ').collect();
    Call {
        service: words[0].to_owned(),
        argument: words[1].strip_prefix('+').expect("a plus").to_owned(),
        source: name(words[2]),
        target: words[3].strip_prefix('-').unwrap_or(words[3]).to_owned(),
    }
}

fn target(target: &ServiceTarget) -> String {
    match target {
        ServiceTarget::AdminVm => "dom0".to_owned(),
        ServiceTarget::Qube(name) => name.to_string(),
        ServiceTarget::NewDisposable(template) => format!("new {template}"),
    }
}

/// A decision in one line.
fn short(decision: &Decision) -> String {
    let extras = |user: &Option<String>, notify: bool, autostart: bool| {
        let user = user.as_ref().map(|user| format!(" as {user}")).unwrap_or_default();
        format!("{user}{}{}", if notify { " notify" } else { "" }, if autostart { "" } else { " no-start" })
    };
    match decision {
        Decision::Allow { target: to, user, notify, autostart } => {
            format!("allow {}{}", target(to), extras(user, *notify, *autostart))
        }
        Decision::Ask { targets, default_target, user, notify, autostart } => {
            let targets: Vec<String> = targets.iter().map(target).collect();
            let chosen = default_target.as_ref().map(|chosen| format!(" default {}", target(chosen)));
            format!("ask {}{}{}", targets.join(","), chosen.unwrap_or_default(), extras(user, *notify, *autostart))
        }
        Decision::Deny { notify, reason } => format!("deny{} {reason}", if *notify { "" } else { " quiet" }),
    }
}

fn decide(policy: &str, words: &str) -> String {
    let policy = Policy::parse(&[("30-test.policy", policy)]).expect(policy);
    short(&policy.evaluate(&call(words), &system()))
}

#[test]
fn rules_decide_calls() {
    const DENIED: &str = "deny denied by 30-test.policy:1";
    const NO_RULE: &str = "deny no rule matches";
    // All but the caller, and but dom0.
    const QUBES: &str = "net-dvm,sd-devices,sd-gpg,sd-log,sd-printers,sd-proxy,sd-viewer,vault";
    for (policy, words, expected) in [
        // Services and arguments.
        ("s * sd-app sd-proxy allow", "s + sd-app sd-proxy", "allow sd-proxy"),
        ("s * sd-app sd-proxy allow", "s +x sd-app sd-proxy", "allow sd-proxy"),
        ("s * sd-app sd-proxy allow", "S +x sd-app sd-proxy", NO_RULE),
        ("s + sd-app sd-proxy allow", "s + sd-app sd-proxy", "allow sd-proxy"),
        ("s + sd-app sd-proxy allow", "s +x sd-app sd-proxy", NO_RULE),
        ("s +x sd-app sd-proxy allow", "s +x sd-app sd-proxy", "allow sd-proxy"),
        ("s +x sd-app sd-proxy allow", "s +xy sd-app sd-proxy", NO_RULE),
        ("s +x+y sd-app sd-proxy allow", "s +x+y sd-app sd-proxy", "allow sd-proxy"),
        ("s +x sd-app sd-proxy allow", "s + sd-app sd-proxy", NO_RULE),
        ("* * sd-app sd-proxy allow", "s +x sd-app sd-proxy", "allow sd-proxy"),
        // Sources.
        ("s * * sd-proxy allow", "s + sd-log sd-proxy", "allow sd-proxy"),
        ("s * @anyvm sd-proxy allow", "s + sd-log sd-proxy", "allow sd-proxy"),
        ("s * @tag:sd-client sd-proxy allow", "s + sd-app sd-proxy", "allow sd-proxy"),
        ("s * @tag:sd-client sd-proxy allow", "s + sd-log sd-proxy", NO_RULE),
        ("s * @type:AppVM sd-proxy allow", "s + sd-app sd-proxy", "allow sd-proxy"),
        ("s * @type:DispVM sd-app allow", "s + sd-proxy sd-app", "allow sd-app"),
        ("s * @type:DispVM sd-gpg allow", "s + sd-app sd-gpg", NO_RULE),
        ("s * @adminvm sd-proxy allow", "s + sd-app sd-proxy", NO_RULE),
        ("s * @dispvm:sd-viewer sd-gpg allow", "s + sd-viewer sd-gpg", NO_RULE),
        ("s * @dispvm:@tag:net sd-gpg allow", "s + net-dvm sd-gpg", NO_RULE),
        // Targets.
        ("s * sd-app * allow", "s + sd-app @adminvm", "allow dom0"),
        ("s * sd-app @anyvm allow", "s + sd-app @adminvm", NO_RULE),
        ("s * sd-app @anyvm allow", "s + sd-app dom0", NO_RULE),
        ("s * sd-app @type:AdminVM allow", "s + sd-app dom0", NO_RULE),
        ("s * sd-app @adminvm allow", "s + sd-app dom0", "allow dom0"),
        ("s * sd-app dom0 allow", "s + sd-app @adminvm", "allow dom0"),
        ("s * sd-app @anyvm allow", "s + sd-app vault", "allow vault"),
        ("s * sd-app @tag:sd-workstation allow", "s + sd-app sd-log", "allow sd-log"),
        ("s * sd-app @tag:sd-workstation allow", "s + sd-app vault", NO_RULE),
        ("s * sd-app @type:StandaloneVM allow", "s + sd-app vault", "allow vault"),
        ("s * sd-app @type:DispVM allow", "s + sd-app sd-proxy", "allow sd-proxy"),
        ("s * sd-app @type:DispVM allow", "s + sd-app sd-log", NO_RULE),
        ("s * sd-app @type:TemplateVM allow", "s + sd-app sd-log", NO_RULE),
        // Before the first call's "$" was "@" it would have been a word for all; in a rule it is an odd name.
        ("s * sd-app $anyvm allow", "s + sd-app sd-log", NO_RULE),
        ("s * $anyvm sd-log allow", "s + sd-app sd-log", NO_RULE),
        ("s * sd-app sd-proxy allow", "s + sd-app @tag:sd-workstation", "deny not a target"),
        ("s * sd-app * allow", "s + sd-app *", "deny not a target"),
        // No target, and one that does not exist.
        ("s * sd-app @default allow target=sd-proxy", "s + sd-app -", "allow sd-proxy"),
        ("s * sd-app @default allow target=sd-proxy", "s + sd-app @default", "allow sd-proxy"),
        ("s * sd-app @default allow target=sd-proxy", "s + sd-app sd-prxy", "allow sd-proxy"),
        ("s * sd-app @default allow target=sd-proxy", "s + sd-app sd-proxy", NO_RULE),
        ("s * sd-app @anyvm allow", "s + sd-app -", "deny 30-test.policy:1 leaves the target open"),
        ("s * sd-app nowhere allow", "s + sd-app nowhere", NO_RULE),
        ("s * sd-app @anyvm deny", "s + sd-app -", DENIED),
        // Disposables.
        ("s * sd-app @dispvm allow", "s + sd-app @dispvm", "allow new sd-viewer"),
        ("s * sd-app @dispvm allow", "s + sd-app @dispvm:sd-viewer", NO_RULE),
        ("s * sd-app @dispvm:sd-viewer allow", "s + sd-app @dispvm:sd-viewer", "allow new sd-viewer"),
        ("s * sd-app @dispvm:sd-viewer allow", "s + sd-app @dispvm", "allow new sd-viewer"),
        ("s * sd-app @dispvm:sd-viewer allow", "s + sd-app sd-viewer", NO_RULE),
        ("s * sd-app @dispvm:net-dvm allow", "s + sd-app @dispvm", NO_RULE),
        ("s * sd-app @dispvm:@tag:net allow", "s + sd-app @dispvm:net-dvm", "allow new net-dvm"),
        ("s * sd-app @dispvm:@tag:net allow", "s + sd-app @dispvm:sd-viewer", NO_RULE),
        ("s * sd-app @dispvm:sd-log allow", "s + sd-app @dispvm:sd-log", "deny not a template for disposables"),
        (
            "s * sd-log @dispvm allow",
            "s + sd-log @dispvm",
            "deny 30-test.policy:1 allows a disposable, and the caller has no template for it",
        ),
        // Redirects and the other options.
        ("s * sd-app sd-log allow target=sd-proxy", "s + sd-app sd-log", "allow sd-proxy"),
        ("s * sd-app sd-log allow target=@adminvm", "s + sd-app sd-log", "allow dom0"),
        ("s * sd-app sd-log allow target=@dispvm", "s + sd-app sd-log", "allow new sd-viewer"),
        ("s * sd-app sd-log allow target=@dispvm:net-dvm", "s + sd-app sd-log", "allow new net-dvm"),
        ("s * sd-app sd-log allow target=@dispvm:sd-log", "s + sd-app sd-log", "deny not a template for disposables"),
        ("s * sd-app sd-log allow target=gone", "s + sd-app sd-log", "deny 30-test.policy:1 leaves the target open"),
        (
            "s * sd-app sd-log allow target=sd-proxy,user=b",
            "s + sd-app sd-log",
            "deny 30-test.policy:1 leaves the target open",
        ),
        ("s * sd-app sd-log allow user=root notify=yes", "s + sd-app sd-log", "allow sd-log as root notify"),
        ("s * sd-app sd-log allow notify=no", "s + sd-app sd-log", "allow sd-log"),
        ("s * sd-app sd-log allow autostart=no", "s + sd-app sd-log", "allow sd-log no-start"),
        ("s * sd-app vault allow autostart=yes", "s + sd-app vault", "allow vault"),
        ("s * sd-app vault allow", "s + sd-app vault", "allow vault"),
        (
            "s * sd-app vault allow autostart=no",
            "s + sd-app vault",
            "deny quiet 30-test.policy:1 does not start the target",
        ),
        (
            "s * sd-app @dispvm allow autostart=no notify=yes",
            "s + sd-app @dispvm",
            "deny 30-test.policy:1 does not start the target",
        ),
        ("s * sd-app sd-log deny notify=no", "s + sd-app sd-log", "deny quiet denied by 30-test.policy:1"),
        // A VM and itself.
        ("s * * * allow", "s + sd-app sd-app", "deny a VM cannot call itself"),
        ("s * * sd-log allow target=sd-app", "s + sd-app sd-log", "deny a VM cannot call itself"),
        // Order.
        ("s * sd-app sd-log deny\ns * sd-app sd-log allow", "s + sd-app sd-log", DENIED),
        ("s * sd-app vault deny\ns * sd-app @anyvm allow", "s + sd-app sd-log", "allow sd-log"),
        ("", "s + sd-app sd-log", NO_RULE),
        ("# s * sd-app sd-log allow\n\n  \t\n", "s + sd-app sd-log", NO_RULE),
        ("  s\t*\tsd-app\tsd-log\tallow  \r\n", "s + sd-app sd-log", "allow sd-log"),
        // Questions.
        ("s * sd-app sd-log ask", "s + sd-app sd-log", "ask sd-log"),
        ("s * sd-app sd-log ask default_target=sd-log", "s + sd-app sd-log", "ask sd-log default sd-log"),
        ("s * sd-app sd-log ask default_target=vault", "s + sd-app sd-log", "ask sd-log"),
        ("s * sd-app @default ask target=sd-log user=u notify=yes", "s + sd-app -", "ask sd-log as u notify"),
        (
            "s * sd-app @dispvm ask default_target=@dispvm",
            "s + sd-app @dispvm",
            "ask new sd-viewer default new sd-viewer",
        ),
        ("s * sd-app sd-log ask notify=no", "s + sd-app sd-log", "ask sd-log"),
        ("s * sd-app @default ask target=sd-log default_target=sd-log", "s + sd-app -", "ask sd-log default sd-log"),
        ("s * sd-app @default ask target=sd-log default_target=vault", "s + sd-app -", "ask sd-log"),
        (
            "s * sd-app @dispvm:net-dvm ask default_target=@dispvm:net-dvm",
            "s + sd-app @dispvm:net-dvm",
            "ask new net-dvm default new net-dvm",
        ),
        ("s * sd-app vault ask autostart=yes", "s + sd-app vault", "ask vault"),
        ("s * sd-app vault ask autostart=no", "s + sd-app vault", "deny 30-test.policy:1 leaves the target open"),
        ("s * sd-app @adminvm ask", "s + sd-app dom0", "ask dom0"),
        ("s * sd-app @default ask", "s + sd-app -", "deny 30-test.policy:1 leaves the target open"),
        ("s * sd-app @default ask\ns * sd-app sd-log allow\ns * sd-gpg vault allow", "s + sd-app -", "ask sd-log"),
        (
            "s * sd-app sd-gpg deny\ns * sd-app @tag:sd-workstation ask autostart=no",
            "s + sd-app sd-log",
            "ask sd-devices,sd-log,sd-printers,sd-proxy,sd-viewer no-start",
        ),
        // What may be chosen is all that is meant: of these words only "*" means dom0, and it does.
        ("s * sd-app @anyvm ask", "s + sd-app sd-log", &format!("ask {QUBES},new net-dvm,new sd-viewer")),
        ("s * sd-app * ask", "s + sd-app sd-log", &format!("ask dom0,{QUBES},new net-dvm,new sd-viewer")),
        ("s * sd-app @type:AdminVM ask\ns * sd-app sd-log ask", "s + sd-app sd-log", "ask sd-log"),
        (
            "s * sd-app @tag:sd-workstation deny\ns * sd-app @anyvm ask",
            "s + sd-app vault",
            "ask net-dvm,vault,new net-dvm,new sd-viewer",
        ),
        // What an earlier rule denies may not be chosen, dom0 and disposables no less than others.
        (
            "s * sd-app @adminvm deny\ns * sd-app * ask",
            "s + sd-app sd-log",
            &format!("ask {QUBES},new net-dvm,new sd-viewer"),
        ),
        (
            "s * sd-app @dispvm:@tag:net deny\ns * sd-app @anyvm ask",
            "s + sd-app sd-log",
            &format!("ask {QUBES},new sd-viewer"),
        ),
        // What only a later rule denies may.
        ("s * sd-app sd-log ask\ns * sd-app @anyvm deny", "s + sd-app sd-log", "ask sd-log"),
    ] {
        assert_eq!(decide(policy, words), expected, "policy: {policy}\ncall: {words}");
    }
}

#[test]
fn files_are_read_in_the_order_of_their_names() {
    let files = [
        ("40-late.policy", "s * sd-app sd-log allow"),
        ("README", "not a policy"),
        (".30-hidden.policy", "nor this"),
        ("31-first.policy", "s * sd-app sd-log deny"),
    ];
    let policy = Policy::parse(&files).expect("a policy");
    let decision = policy.evaluate(&call("s + sd-app sd-log"), &system());
    assert_eq!(short(&decision), "deny denied by 31-first.policy:1");
}

#[test]
fn one_bad_file_name_refuses_all() {
    let files = [("30-Bad.policy", ""), ("31-good.policy", "s * sd-app sd-log allow")];
    assert_eq!(Policy::parse(&files).expect_err("refused"), PolicyError::FileName { file: "30-Bad.policy".to_owned() });
}

#[test]
fn one_bad_line_refuses_all_and_says_where() {
    for (line, expected) in [
        ("s * sd-app sd-log", "a rule is SERVICE ARGUMENT SOURCE TARGET ACTION [option=value ...]"),
        ("s sd-app sd-log allow", "a rule is SERVICE ARGUMENT SOURCE TARGET ACTION [option=value ...]"),
        ("s * sd-app sd-log allow # why", "not an option: # (comments need a line of their own)"),
        ("s * sd-app sd-log deny #why=that", "deny takes no option #why"),
        ("s/t * sd-app sd-log allow", "not a service: s/t"),
        ("s+x * sd-app sd-log allow", "not a service: s+x"),
        ("s x sd-app sd-log allow", "not an argument ('*', '+' or '+text'): x"),
        ("s +x* sd-app sd-log allow", "not an argument ('*', '+' or '+text'): +x*"),
        ("s +é sd-app sd-log allow", "not an argument ('*', '+' or '+text'): +é"),
        ("* + sd-app sd-log allow", "the service '*' takes only the argument '*'"),
        ("* +x sd-app sd-log allow", "the service '*' takes only the argument '*'"),
        ("s * @default sd-log allow", "not a source: \"@default\""),
        ("s * @dispvm sd-log allow", "not a source: \"@dispvm\""),
        ("s * @everyone sd-log allow", "not a source: \"@everyone\""),
        ("s * sd-app @tag: allow", "not a target: \"@tag:\""),
        ("s * sd-app @tag:@x allow", "not a target: \"@tag:@x\""),
        ("s * sd-app @dispvm:@type:x allow", "not a target: \"@dispvm:@type:x\""),
        ("s * sd-app @ allow", "not a target: \"@\""),
        ("s * sd-app sd-log Allow", "not an action: Allow"),
        ("s * sd-app sd-log allow,target=x", "not an action: allow,target=x"),
        ("s * sd-app sd-log allow notify=true", "option notify is 'yes' or 'no'"),
        ("s * sd-app sd-log allow autostart=", "option autostart is 'yes' or 'no'"),
        ("s * sd-app sd-log allow user=a user=a", "option user is given twice"),
        ("s * sd-app sd-log allow default_target=sd-log", "allow takes no option default_target"),
        ("s * sd-app sd-log ask colour=red", "ask takes no option colour"),
        ("s * sd-app sd-log deny target=sd-log", "deny takes no option target"),
        ("s * sd-app sd-log deny autostart=no", "deny takes no option autostart"),
        ("s * sd-app sd-log allow target=", "not a target: \"\""),
        ("s * sd-app sd-log allow target=@anyvm", "not a target: \"@anyvm\""),
        ("s * sd-app sd-log allow target=@default", "not a target: \"@default\""),
        ("s * sd-app sd-log ask default_target=@tag:x", "not a default_target: \"@tag:x\""),
        ("s * sd-app @default allow", "allow on @default needs target="),
        ("!include elsewhere", "directives are not supported here: !include elsewhere"),
    ] {
        let text = format!("# one\ns * sd-app sd-log allow\n\n{line}\ns * sd-app sd-log allow\n");
        let error = Policy::parse(&[("10-fine.policy", "s * a b allow"), ("30-test.policy", text.as_str())]);
        assert_eq!(error.expect_err(line).to_string(), format!("30-test.policy:4: {expected}"));
    }
}

#[test]
fn the_shipped_policy_allows_its_scopes_and_nothing_else() {
    let policy = Policy::parse(&[("31-splitdrop.policy", SHIPPED), ("99-rest.policy", "* * * * allow target=sd-log")]);
    let policy = policy.expect("the shipped policy");
    let system = system();
    let decide = |words: &str| policy.evaluate(&call(words), &system);

    for scope in ["session", "metadata", "mark", "delete", "download", "reply"] {
        let decision = decide(&format!("splitdrop.Proxy +{scope} sd-app sd-proxy"));
        assert_eq!(short(&decision), "allow sd-proxy");
    }
    let qubes = system.qubes.keys().map(QubeName::as_str);
    let others = ["-", "@default", "@adminvm", "dom0", "@dispvm", "@dispvm:sd-viewer", "no-such-vm"];
    let targets: Vec<&str> = qubes.clone().chain(others).collect();
    let scopes = ["+session", "+metadata", "+mark", "+delete", "+download", "+reply"];
    for argument in scopes.into_iter().chain(["+", "+delete+", "+downloads", "+replies", "+-session", "+x"]) {
        for source in qubes.clone() {
            for target in &targets {
                let scope = scopes.contains(&argument);
                let allowed = scope && (source, *target) == ("sd-app", "sd-proxy");
                let words = format!("splitdrop.Proxy {argument} {source} {target}");
                match decide(&words) {
                    Decision::Deny { notify, reason: Refusal::Denied(place) } if !allowed => {
                        assert_eq!(place.file, "31-splitdrop.policy", "{words}");
                        let to_itself = source == *target && ["sd-app", "sd-proxy"].contains(target);
                        assert_eq!(notify, !to_itself, "{words}");
                    }
                    Decision::Allow { .. } if allowed => {}
                    other => panic!("{words}: {other:?}"),
                }
            }
        }
    }
    assert_eq!(short(&decide("other.Service + sd-app sd-proxy")), "allow sd-log");
}

#[test]
fn a_folder_is_read_like_dom0_does() {
    let folder = tempfile::tempdir().expect("a folder");
    for (name, text) in [("32-b.policy", "two"), ("31-a.policy", "one"), ("note.txt", "no"), (".x.policy", "no")] {
        std::fs::write(folder.path().join(name), text).expect("written");
    }
    let files = load_folder(folder.path()).expect("read");
    let files: Vec<(&str, &str)> = files.iter().map(|(name, text)| (name.as_str(), text.as_str())).collect();
    assert_eq!(files, [("31-a.policy", "one"), ("32-b.policy", "two")]);
    assert!(load_folder(&folder.path().join("none")).is_err());
}

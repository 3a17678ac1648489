//! The script that puts the policy into its place, with stand-ins for the tools of dom0.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use staging::qrexec::policy::Policy;
use tempfile::TempDir;

const NAME: &str = "31-splitdrop.policy";
const QUBES: &str = "dom0\nsd-app\nsd-devices\nsd-gpg\nsd-printers\nsd-proxy\nsd-viewer\nwork\n";

fn shipped(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../qubes-rpc/dom0").join(name)
}

fn text(name: &str) -> String {
    fs::read_to_string(shipped(name)).unwrap()
}

/// A dom0: a folder of policies, and tools.
struct Dom0 {
    root: TempDir,
}

impl Dom0 {
    /// With a lint that is content, and these qubes.
    fn new() -> Self {
        let root = tempfile::tempdir().unwrap();
        for folder in ["policy.d", "bin"] {
            fs::create_dir(root.path().join(folder)).unwrap();
        }
        fs::write(root.path().join("qubes"), QUBES).unwrap();
        let dom0 = Self { root };
        dom0.tool("qubes-policy-lint", "[ -f \"$1\" ] && cp \"$1\" \"$ROOT/linted\"");
        dom0.tool("qvm-ls", "[ \"$*\" = --raw-list ] && cat \"$ROOT/qubes\"");
        dom0
    }

    fn path(&self, name: &str) -> PathBuf {
        self.root.path().join(name)
    }

    fn tool(&self, name: &str, script: &str) {
        let path = self.path("bin").join(name);
        let root = self.root.path().display();
        // Another process writes it: a fork of this one could hold the file open for writing when it is to be run.
        let written = Command::new("/bin/sh")
            .args(["-c", "printf '#!/bin/sh\\nROOT=%s\\n%s\\n' \"$1\" \"$2\" >\"$3\" && chmod 700 \"$3\"", "sh"])
            .arg(root.to_string())
            .arg(script)
            .arg(&path)
            .status();
        assert!(written.unwrap().success());
    }

    fn without(&self, tool: &str) {
        fs::remove_file(self.path("bin").join(tool)).unwrap();
    }

    fn run(&self, arguments: &[&str]) -> Output {
        let path = format!("{}:/usr/bin:/bin", self.path("bin").display());
        Command::new(shipped("install-policy"))
            .args(arguments)
            .env_clear()
            .env("PATH", path)
            .env("TMPDIR", self.root.path())
            .env("SPLITDROP_POLICY_FOLDER", self.path("policy.d"))
            .output()
            .unwrap()
    }

    /// Tries to install a file with this text.
    fn install(&self, text: &str) -> Output {
        let file = self.path("mine.policy");
        fs::write(&file, text).unwrap();
        self.run(&[file.to_str().unwrap()])
    }

    /// What dom0 has now.
    fn policies(&self) -> Vec<String> {
        let entries = self.path("policy.d").read_dir().unwrap();
        let mut names: Vec<_> = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    fn installed(&self) -> String {
        fs::read_to_string(self.path("policy.d").join(NAME)).unwrap()
    }
}

fn said(output: &Output) -> String {
    assert!(output.stdout.is_empty(), "{output:?}");
    String::from_utf8(output.stderr.clone()).unwrap()
}

#[test]
fn the_shipped_files_pass_and_are_put_into_their_place_whole() {
    let dom0 = Dom0::new();
    let checked = dom0.run(&["--check"]);
    assert!(checked.status.success() && dom0.policies().is_empty(), "{checked:?}");

    let first = dom0.run(&[]);
    assert!(first.status.success(), "{first:?}");
    assert_eq!((dom0.policies(), dom0.installed()), (vec![NAME.to_owned()], text(NAME)));
    assert_eq!(fs::read_to_string(dom0.path("linted")).unwrap(), text(NAME), "what is installed is what was checked");
    let mode = fs::metadata(dom0.path("policy.d").join(NAME)).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o644);
    let words = said(&first);
    assert!(words.contains("rm '") && !words.contains("mv '"), "there was nothing before: {words}");

    let strict = dom0.run(&["--strict"]);
    assert!(strict.status.success(), "{strict:?}");
    assert_eq!(dom0.installed(), text("strict/31-splitdrop.policy"));
    // And back, as it says.
    let back = said(&strict).lines().find_map(|line| line.split_once("    mv ").map(|(_, rest)| rest.to_owned()));
    let line = back.unwrap();
    let line = line.split_once("    (").unwrap().0;
    assert!(Command::new("/bin/sh").args(["-c", &format!("mv {line}")]).status().unwrap().success());
    assert_eq!((dom0.policies(), dom0.installed()), (vec![NAME.to_owned()], text(NAME)));
}

#[test]
fn the_strict_variant_is_checked_as_it_would_be_installed_and_is_no_other_file() {
    let dom0 = Dom0::new();
    for options in [["--check", "--strict"], ["--strict", "--check"]] {
        let checked = dom0.run(&options);
        assert!(checked.status.success() && dom0.policies().is_empty(), "{checked:?}");
        assert!(said(&checked).contains("strict/31-splitdrop.policy can be installed"), "{checked:?}");
        assert_eq!(fs::read_to_string(dom0.path("linted")).unwrap(), text("strict/31-splitdrop.policy"));
    }
    // A file of one's own is not strict by being called so.
    let mine = dom0.path("mine.policy");
    fs::write(&mine, text(NAME)).unwrap();
    let mine = mine.to_str().unwrap();
    for wrong in [
        &["--strict", mine][..],
        &["--check", "--strict", mine],
        &[mine, "--strict"],
        &["--strict", "--strict"],
        &["--stric"],
        &[mine, mine],
    ] {
        let refused = dom0.run(wrong);
        assert_eq!(refused.status.code(), Some(2), "{wrong:?}: {refused:?}");
        assert!(said(&refused).contains("usage: install-policy"), "{refused:?}");
        assert!(dom0.policies().is_empty());
    }
    assert!(dom0.run(&["--check", mine]).status.success() && dom0.policies().is_empty());
}

/// One bad line refuses every call of the whole system, and the tool of Qubes does not notice them all.
#[test]
fn a_bad_line_installs_nothing() {
    let dom0 = Dom0::new();
    assert!(dom0.run(&[]).status.success());
    for (line, part) in [
        ("splitdrop.Proxy +mark sd-app sd-proxy", "SERVICE ARGUMENT SOURCE TARGET ACTION"),
        ("splitdrop.Proxy +mark sd-app sd-proxy permit", "allow, deny or ask"),
        ("splitdrop.Proxy mark sd-app sd-proxy allow", "the argument"),
        ("splitdrop.Proxy +mark sd-app sd-proxy allow # why", "a line of its own"),
        ("splitdrop.Proxy +mark sd-app sd-proxy ask target=sd-proxy,default_target=sd-proxy", "separated by spaces"),
        ("splitdrop.Proxy +mark sd-app sd-proxy allow quietly", "not an option"),
        ("splitdrop.Proxy +mark sd-app sd-proxy allow colour=red", "not an option"),
        ("splitdrop.Proxy +mark $anyvm sd-proxy deny", "\"@\""),
        ("splitdrop.Proxy +mark sd-app sd-porxy allow", "sd-porxy"),
        ("splitdrop.Proxy +mark sd-ap sd-proxy allow", "sd-ap"),
        ("splitdrop.Proxy +mark sd-app @dispvm:sd-veiwer allow", "sd-veiwer"),
        ("splitdrop.Proxy +mark sd-app @default allow target=sd-porxy", "sd-porxy"),
        ("splitdrop.Proxy +mark sd-app sd-proxy ask default_target=sd-porxy", "sd-porxy"),
        ("splitdrop.Proxy +mark sd-app sd-proxy allow\r", "carriage returns"),
        ("splitdrop.Proxy +mark sd-app sd-pröxy allow", "ASCII"),
        ("!include /etc/qubes/elsewhere", "directive"),
        ("qubes.Filecopy * @anyvm @anyvm deny", "only splitdrop.Proxy is denied"),
        ("qubes.OpenInVM + @anyvm sd-devices allow", "exact calls"),
        ("qubes.OpenInVM * sd-app sd-devices allow", "exact calls"),
        ("qubes.Gpg + sd-app @anyvm allow", "exact calls"),
        ("* * sd-app sd-proxy allow", "exact calls"),
    ] {
        let refused = dom0.install(&format!("{}{line}\n", text(NAME)));
        let words = said(&refused);
        assert_eq!(refused.status.code(), Some(1), "{line}: {words}");
        assert!(words.contains(part) && words.ends_with("nothing was installed\n"), "{line}: {words}");
        assert_eq!((dom0.policies(), dom0.installed()), (vec![NAME.to_owned()], text(NAME)), "{line}");
    }
    for nothing in ["", "# Only a comment.\n\n"] {
        assert!(said(&dom0.install(nothing)).contains("no rule"));
    }
    assert_eq!(dom0.installed(), text(NAME));
}

/// What passes the script passes the parser of staging too.
#[test]
fn other_names_and_questions_pass() {
    let dom0 = Dom0::new();
    let mine = text(NAME).replace("sd-gpg", "work").replace("allow  target=work", "ask  target=work  notify=yes");
    let output = dom0.install(&mine);
    assert!(output.status.success(), "{output:?}");
    assert_eq!(dom0.installed(), mine);
    Policy::parse(&[(NAME, mine)]).unwrap();
}

#[test]
fn a_word_or_an_exit_code_of_the_lint_installs_nothing() {
    let dom0 = Dom0::new();
    for (script, part) in [("echo a word", "a word"), ("echo a fault >&2", "a fault"), ("exit 1", "does not agree")] {
        dom0.tool("qubes-policy-lint", script);
        let refused = dom0.run(&[]);
        assert_eq!(refused.status.code(), Some(1));
        assert!(said(&refused).contains(part), "{refused:?}");
    }
    dom0.without("qubes-policy-lint");
    let refused = dom0.run(&[]);
    assert!(refused.status.code() == Some(1) && said(&refused).contains("qubes-policy-lint is missing"), "{refused:?}");
    assert_eq!(dom0.policies(), [] as [String; 0]);
}

#[test]
fn without_a_list_of_qubes_it_says_so_and_with_a_failed_one_it_stops() {
    let dom0 = Dom0::new();
    dom0.tool("qvm-ls", "exit 1");
    let refused = dom0.run(&[]);
    assert!(refused.status.code() == Some(1) && dom0.policies().is_empty(), "{refused:?}");
    dom0.without("qvm-ls");
    let output = dom0.run(&[]);
    assert!(output.status.success() && said(&output).contains("was not checked"), "{output:?}");
    assert_eq!(dom0.policies(), [NAME]);
}

#[test]
fn what_it_is_not_made_for_it_refuses_and_it_leaves_nothing_behind() {
    let dom0 = Dom0::new();
    for arguments in [&["--loose"][..], &["one", "two"], &["--strict", "one", "two"]] {
        assert_eq!(dom0.run(arguments).status.code(), Some(2), "{arguments:?}");
    }
    assert!(said(&dom0.run(&["/nowhere/file"])).contains("is not there"));
    fs::remove_dir(dom0.path("policy.d")).unwrap();
    let refused = dom0.run(&[]);
    assert!(refused.status.code() == Some(1) && said(&refused).contains("is this dom0"), "{refused:?}");
    let mut left: Vec<_> = dom0.root.path().read_dir().unwrap().map(|entry| entry.unwrap().file_name()).collect();
    left.sort();
    assert_eq!(left, ["bin", "qubes"]);
}

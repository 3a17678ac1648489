//! The AppArmor profile that a deployment installs, read by AppArmor's own parser. Nothing is loaded.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// Where Debian has it; not every user's PATH leads there.
const PARSERS: [&str; 2] = ["/usr/sbin/apparmor_parser", "/sbin/apparmor_parser"];

fn profile() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../qubes-rpc/sd-proxy/apparmor/splitdrop-proxy")
}

/// The parser; `None` where tests with it are to be left out. A missing one fails them otherwise.
fn parser() -> Option<&'static Path> {
    if std::env::var("SPLITDROP_SKIP").unwrap_or_default().split(',').any(|name| name == "apparmor") {
        return None;
    }
    let found = PARSERS.into_iter().map(Path::new).find(|path| path.exists());
    assert!(found.is_some(), "apparmor_parser is missing: apt-get install apparmor");
    found
}

/// Has a profile read, without the kernel and without a cache.
fn read(parser: &Path, profile: &Path, more: &[&str]) -> Output {
    Command::new(parser).args(["--skip-kernel-load", "--skip-cache"]).args(more).arg(profile).output().unwrap()
}

#[test]
fn the_profile_can_be_read() {
    let Some(parser) = parser() else { return };
    let output = read(parser, &profile(), &[]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let names = read(parser, &profile(), &["--names"]);
    assert_eq!(String::from_utf8(names.stdout).unwrap(), "splitdrop-proxy\nsplitdrop-proxy//qubesdb\n");
}

#[test]
fn a_profile_with_a_fault_cannot_be_read() {
    let Some(parser) = parser() else { return };
    let folder = tempfile::tempdir().unwrap();
    let damaged = folder.path().join("damaged");
    let text = std::fs::read_to_string(profile()).unwrap();
    std::fs::write(&damaged, text.replacen("network inet stream,", "network inet stream", 1)).unwrap();
    assert!(!read(parser, &damaged, &[]).status.success());
}

#[test]
fn the_profile_is_for_the_program_that_qrexec_starts() {
    let service = Path::new(env!("CARGO_MANIFEST_DIR")).join("../qubes-rpc/sd-proxy/splitdrop.Proxy");
    let service = std::fs::read_to_string(service).unwrap();
    let program = service.lines().find_map(|line| line.strip_prefix("exec ")).unwrap();
    let text = std::fs::read_to_string(profile()).unwrap();
    assert!(text.contains(&format!("profile splitdrop-proxy {program} {{")), "{program}");
}

//! The unit of systemd and the profile of AppArmor: the tools that will read them do, and they say what they are meant to.

use std::path::{Path, PathBuf};
use std::process::Command;

fn shipped(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../qubes-rpc/sd-app").join(name)
}

fn text(name: &str) -> String {
    std::fs::read_to_string(shipped(name)).unwrap()
}

/// Whether tests that need this may be passed over.
fn passed_over(tool: &str) -> bool {
    std::env::var("SPLITDROP_SKIP").unwrap_or_default().split(',').any(|name| name.trim() == tool)
}

/// The first of the places where a program is.
fn program(places: &[&str], package: &str) -> Option<PathBuf> {
    let found = places.iter().map(PathBuf::from).find(|place| place.is_file());
    let skipped = passed_over(package);
    assert!(found.is_some() || skipped, "{places:?}: apt-get install {package}, or set SPLITDROP_SKIP={package}");
    found.filter(|_| !skipped)
}

/// What systemd says of a unit of a user, with a program that is there in the place of ours.
fn verified(analyze: &Path, unit: &str) -> (bool, String) {
    let place = tempfile::tempdir().unwrap();
    let file = place.path().join("splitdrop.service");
    std::fs::write(&file, unit.replace("/usr/bin/splitdrop", "/bin/true")).unwrap();
    let output = Command::new(analyze)
        .args(["verify", "--user", "--man=no"])
        .arg(&file)
        .env_clear()
        .env("HOME", place.path())
        .env("XDG_RUNTIME_DIR", place.path())
        .output()
        .unwrap();
    (output.status.success(), String::from_utf8_lossy(&output.stderr).into_owned())
}

#[test]
fn systemd_knows_each_line_of_the_unit() {
    let Some(analyze) = program(&["/usr/bin/systemd-analyze", "/bin/systemd-analyze"], "systemd") else { return };
    let unit = text("splitdrop.service");
    assert_eq!(verified(&analyze, &unit), (true, String::new()));
    // It would say so.
    let (_, said) = verified(&analyze, &unit.replace("LockPersonality=", "LockPersonalty="));
    assert!(said.contains("LockPersonalty"), "{said}");
    let (_, said) = verified(&analyze, &unit.replace("AF_UNIX", "AF_UNIKS"));
    assert!(said.contains("AF_UNIKS"), "{said}");
}

#[test]
fn the_unit_confines_the_daemon() {
    let unit = text("splitdrop.service");
    for line in [
        "NoNewPrivileges=yes",
        "RestrictAddressFamilies=AF_UNIX",
        "SystemCallFilter=@system-service seccomp",
        "SystemCallErrorNumber=EPERM",
        "SystemCallArchitectures=native",
        "LockPersonality=yes",
        "MemoryDenyWriteExecute=yes",
        "RestrictNamespaces=yes",
        "RestrictRealtime=yes",
        "RestrictSUIDSGID=yes",
        "UMask=0077",
        "LimitCORE=0",
        "Environment=MALLOC_ARENA_MAX=2",
        "RestartPreventExitStatus=2 9 14",
    ] {
        assert_eq!(unit.lines().filter(|known| *known == line).count(), 1, "{line}");
    }
}

/// Whether AppArmor's compiler takes a profile; nothing is loaded.
fn parsed(parser: &Path, profile: &str) -> (bool, String) {
    let place = tempfile::tempdir().unwrap();
    let file = place.path().join("splitdrop");
    std::fs::write(&file, profile).unwrap();
    let output = Command::new(parser).args(["-Q", "-K", "--warn=all"]).arg(&file).output().unwrap();
    (output.status.success(), String::from_utf8_lossy(&output.stderr).into_owned())
}

#[test]
fn apparmor_takes_the_profile() {
    let Some(parser) = program(&["/usr/sbin/apparmor_parser", "/sbin/apparmor_parser"], "apparmor") else { return };
    let profile = text("apparmor/splitdrop");
    let (taken, said) = parsed(&parser, &profile);
    assert!(taken, "{said}");
    // It would say so.
    assert!(!parsed(&parser, &profile.replace("/usr/bin/splitdrop mr,", "/usr/bin/splitdrop mrq,")).0);
}

/// What the help shows can be done under the profile, and what a refused folder is told of is that rule's.
#[test]
fn the_profile_has_a_folder_for_copies_and_no_other_one_in_the_home() {
    let profile = text("apparmor/splitdrop");
    let written: Vec<_> = profile
        .lines()
        .map(str::trim)
        .filter(|rule| rule.starts_with("owner @{HOME}/") && rule.rsplit(' ').next().unwrap().contains('w'))
        .collect();
    assert_eq!(
        written,
        [
            "owner @{HOME}/.local/share/{,splitdrop/} rw,",
            "owner @{HOME}/.local/share/splitdrop/** rwk,",
            "owner @{HOME}/Splitdrop/{,**} rw,",
            "owner @{HOME}/.gnupg/S.gpg-agent rw,",
        ]
    );
}

#[test]
fn the_profile_lets_nothing_out_and_writes_nowhere_but_to_its_own_places() {
    let profile = text("apparmor/splitdrop");
    let rules: Vec<_> =
        profile.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#')).collect();
    let networks: Vec<_> = rules.iter().filter(|rule| rule.contains("network")).collect();
    assert_eq!(networks, [&"network unix,"]);
    // A program that is started stays under the profile: nothing leaves it under no_new_privs.
    for rule in &rules {
        let mode = rule.trim_end_matches(',').rsplit(' ').next().unwrap();
        assert!(
            !rule.starts_with('/') || !["Ux", "ux", "Px", "px", "Cx", "cx"].iter().any(|way| mode.contains(way)),
            "{rule}"
        );
    }
    assert!(!rules.iter().any(|rule| rule.starts_with("capability") || *rule == "/** rw,"));
}

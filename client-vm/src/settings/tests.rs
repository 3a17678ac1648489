use super::*;

fn load(variables: &[(&str, &str)]) -> Result<Settings, SettingsError> {
    let find = |name: &str| variables.iter().find(|(known, _)| *known == name).map(|(_, value)| OsString::from(value));
    Settings::load(find, None)
}

#[test]
fn the_defaults_are_those_of_a_workstation() {
    let settings = load(&[("HOME", "/home/user"), ("XDG_RUNTIME_DIR", "/run/user/1000")]).unwrap();
    assert_eq!(settings.home, Path::new("/home/user/.local/share/splitdrop"));
    assert_eq!(settings.socket, Path::new("/run/user/1000/splitdrop/control.sock"));
    assert_eq!(settings.proxy_vm.as_str(), "sd-proxy");
    assert_eq!(settings.qrexec_client, Path::new("/usr/bin/qrexec-client-vm"));
    assert!(!settings.allow_network);
}

#[test]
fn the_directories_of_xdg_come_before_those_in_the_home_directory() {
    let directory = tempfile::tempdir().unwrap();
    let config = directory.path().join("splitdrop");
    std::fs::create_dir(&config).unwrap();
    std::fs::write(config.join("config.toml"), "proxy_vm = \"work-proxy\"\n").unwrap();
    let variables =
        [("HOME", "/home/user"), ("XDG_DATA_HOME", "/data"), ("XDG_CONFIG_HOME", directory.path().to_str().unwrap())];
    let settings = load(&variables).unwrap();
    assert_eq!(settings.home, Path::new("/data/splitdrop"));
    assert_eq!(settings.proxy_vm.as_str(), "work-proxy");
    assert_eq!(settings.socket, Path::new("/data/splitdrop/control.sock"), "there is no XDG_RUNTIME_DIR");
}

#[test]
fn the_environment_comes_before_the_file_and_the_file_before_the_defaults() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("config.toml");
    std::fs::write(&file, "proxy_vm = \"work-proxy\"\nqrexec_client = \"/opt/qrexec\"\n").unwrap();
    let file = file.to_str().unwrap();
    let variables = [("SPLITDROP_HOME", "/data"), ("SPLITDROP_CONFIG", file)];
    let settings = load(&variables).unwrap();
    assert_eq!(settings.proxy_vm.as_str(), "work-proxy");
    assert_eq!(settings.qrexec_client, Path::new("/opt/qrexec"));
    assert_eq!(settings.socket, Path::new("/data/control.sock"));
    let settings = load(&[variables[0], variables[1], ("SPLITDROP_QREXEC", "/elsewhere")]).unwrap();
    assert_eq!(settings.qrexec_client, Path::new("/elsewhere"));
}

#[test]
fn a_bad_file_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("config.toml");
    for (text, part) in [("proxy_wm = \"x\"", "proxy_wm"), ("proxy_vm = \"-rf\"", "proxy_vm")] {
        std::fs::write(&file, text).unwrap();
        let error = load(&[("SPLITDROP_HOME", "/data"), ("SPLITDROP_CONFIG", file.to_str().unwrap())]).unwrap_err();
        assert!(error.to_string().contains(part), "{error}");
    }
    for (text, line) in [
        ("# A comment.\n\nproxy_wm = \"x\"\n", "line 3: "),
        ("proxy_vm = \"x\"\nlog_file 5\n", "line 2: "),
        ("proxy_vm = 5", "line 1: "),
        ("proxy_vm = \"\"\"\nx", "line 2: "),
    ] {
        std::fs::write(&file, text).unwrap();
        let error = load(&[("SPLITDROP_HOME", "/data"), ("SPLITDROP_CONFIG", file.to_str().unwrap())]).unwrap_err();
        let told = error.to_string();
        assert!(told.contains(line) && !told.contains('\n'), "{told}");
    }
    let missing = load(&[("HOME", "/home/user"), ("SPLITDROP_CONFIG", "/nowhere/config.toml")]);
    assert!(matches!(missing, Err(SettingsError::Read { .. })));
    assert!(matches!(load(&[]), Err(SettingsError::NoHome)));
}

#[test]
fn a_deletion_waits_for_as_long_as_the_file_says_if_that_is_not_too_long() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("config.toml");
    let grace = |line: &str| {
        std::fs::write(&file, format!("[acts]\n{line}\n")).unwrap();
        let loaded = load(&[("SPLITDROP_HOME", "/data"), ("SPLITDROP_CONFIG", file.to_str().unwrap())]);
        loaded.map(|settings| settings.acts.delete_grace.as_millis())
    };
    assert_eq!(grace("").unwrap(), 10_000);
    assert_eq!(grace("delete_grace_ms = 0").unwrap(), 0);
    assert_eq!(grace("delete_grace_ms = 600000").unwrap(), 600_000);
    let error = grace("delete_grace_ms = 600001").unwrap_err();
    assert!(error.to_string().contains("is not 0 (not at all), nor 1000 to 600000 milliseconds"), "{error}");
}

/// Seconds that stand where milliseconds belong would have the client sync without a pause, know nothing of any act, or
/// take undo away.
#[test]
fn a_time_in_another_unit_is_refused_with_the_range() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("config.toml");
    let with = |text: &str| {
        std::fs::write(&file, text).unwrap();
        load(&[("SPLITDROP_HOME", "/data"), ("SPLITDROP_CONFIG", file.to_str().unwrap())])
    };
    for (table, setting, least) in [
        ("sync", "interval_ms", 1_000),
        ("sync", "first_wait_ms", 1_000),
        ("sync", "most_wait_ms", 1_000),
        ("sync", "stale_ms", 1_000),
        ("acts", "first_wait_ms", 1_000),
        ("acts", "most_wait_ms", 1_000),
        ("acts", "deadline_ms", 10_000),
        ("acts", "overdue_ms", 1_000),
        ("acts", "delete_grace_ms", 1_000),
    ] {
        let text = |ms: u32| {
            let first = if setting == "most_wait_ms" { format!("first_wait_ms = {}\n", least) } else { String::new() };
            format!("[{table}]\n{first}{setting} = {ms}\n")
        };
        with(&text(least)).unwrap();
        let error = with(&text(least - 1)).unwrap_err().to_string();
        assert!(error.contains(&format!("`{setting}`")) && error.contains(&format!("{least} to ")), "{error}");
        // Staging's are as short as they are.
        let short = text(least - 1).replace(&format!("first_wait_ms = {least}\n"), "first_wait_ms = 1\n");
        with(&format!("short_times = true\n{short}")).unwrap();
    }
    for table in ["sync", "acts"] {
        let error = with(&format!("[{table}]\nfirst_wait_ms = 6000\nmost_wait_ms = 5999\n")).unwrap_err();
        let told = error.to_string();
        assert!(told.contains("`first_wait_ms`") && told.contains("6000") && told.contains("5999"), "{told}");
    }
}

#[test]
fn dom0_asks_about_the_scopes_that_the_file_names() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("config.toml");
    let asked = |text: &str| {
        std::fs::write(&file, text).unwrap();
        let loaded = load(&[("SPLITDROP_HOME", "/data"), ("SPLITDROP_CONFIG", file.to_str().unwrap())]);
        loaded.map(|settings| Scope::ALL.into_iter().filter(|scope| settings.dom0_asks.about(*scope)).collect())
    };
    let none: Vec<Scope> = asked("").unwrap();
    assert_eq!(none, []);
    assert_eq!(asked("dom0_asks = []").unwrap(), none);
    assert_eq!(asked("dom0_asks = [\"delete\", \"session\"]").unwrap(), [Scope::Session, Scope::Delete]);
    let all = "[\"session\", \"metadata\", \"mark\", \"delete\", \"download\", \"reply\"]";
    assert_eq!(asked(&format!("dom0_asks = {all}")).unwrap(), Scope::ALL);
    for (wrong, told) in [("[\"deletions\"]", "names `deletions`"), ("[\"+delete\"]", "names `+delete`")] {
        let error = asked(&format!("dom0_asks = {wrong}")).unwrap_err().to_string();
        assert!(error.contains(told) && error.contains("session, metadata, mark, delete"), "{error}");
    }
}

#[test]
fn documents_go_to_the_vms_that_are_named_and_to_no_other_kind_of_target() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("config.toml");
    let with = |text: &str| {
        std::fs::write(&file, text).unwrap();
        load(&[("SPLITDROP_HOME", "/data"), ("SPLITDROP_CONFIG", file.to_str().unwrap())])
    };
    let vms = |settings: &HandoverSettings| {
        [&settings.viewer_vm, &settings.device_vm, &settings.printer_vm].map(|vm| vm.as_str().to_owned())
    };
    let default = with("").unwrap().handover;
    assert_eq!(default.open_in_vm, Path::new("/usr/bin/qvm-open-in-vm"));
    assert_eq!(vms(&default), ["@dispvm:sd-viewer", "sd-devices", "sd-printers"]);
    let named = with("[handover]\nviewer_vm = \"@dispvm\"\ndevice_vm = \"usb\"\nprinter_vm = \"printers\"\n");
    assert_eq!(vms(&named.unwrap().handover), ["@dispvm", "usb", "printers"]);
    for wrong in ["viewer_vm = \"--help\"", "device_vm = \"@anyvm\"", "printer_vm = \"\"", "viewers = 9"] {
        let error = with(&format!("[handover]\n{wrong}\n")).unwrap_err().to_string();
        assert!(error.contains(wrong.split_whitespace().next().unwrap()), "{error}");
    }
}

#[test]
fn a_socket_path_that_is_too_long_is_refused() {
    let long = format!("/{}", "x".repeat(120));
    assert!(matches!(load(&[("SPLITDROP_HOME", &long)]), Err(SettingsError::SocketPath(_))));
}

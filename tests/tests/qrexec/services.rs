//! What a service sees: its environment, its argument, where it is looked for, its configuration.

use std::collections::BTreeMap;
use std::process::Stdio;

use staging::qrexec::broker::EventKind;

use crate::support::{ALLOW_ALL, Stage, bounded, vm};

#[tokio::test]
async fn a_service_sees_what_qrexec_tells_it_and_nothing_else() {
    let script = r#"
        env | grep -v -e '^_=' -e '^PWD=' -e '^SHLVL=' -e '^OLDPWD=' -e '^QREXEC_AGENT_PID=' | sort
        echo "arguments: $#${1:+ $1}"
        case "$QREXEC_AGENT_PID" in ''|*[!0-9]*) echo "no agent" ;; esac
        ( : < /dev/stdin ) 2>/dev/null || echo "stdin cannot be opened"
        ( : > /dev/stdout ) 2>/dev/null || echo "stdout cannot be opened"
    "#;
    let stage = Stage::with(&[("test.Env", script)], ALLOW_ALL, |options| {
        let installation = options.installed.get_mut(&vm("sd-proxy")).unwrap();
        installation.environment = BTreeMap::from([
            ("SD_PROXY_ORIGIN".to_owned(), "http://127.0.0.1:1".to_owned()),
            ("QREXEC_REMOTE_DOMAIN".to_owned(), "forged".to_owned()),
        ]);
    });
    let common = "SD_PROXY_ORIGIN=http://127.0.0.1:1";
    for (service, source, argument) in
        [("test.Env", "sd-app", ""), ("test.Env+", "sd-app", ""), ("test.Env+one", "sd-gpg", "one")]
    {
        let output = bounded(stage.command_of(source, &["sd-proxy", service]).stdin(Stdio::null()).output()).await;
        let count = if argument.is_empty() { "0".to_owned() } else { format!("1 {argument}") };
        assert_eq!(
            String::from_utf8(output.unwrap().stdout).unwrap(),
            format!(
                "PATH=/usr/bin:/bin\nQREXEC_REMOTE_DOMAIN={source}\nQREXEC_SERVICE_ARGUMENT={argument}\n\
                 QREXEC_SERVICE_FULL_NAME=test.Env+{argument}\n{common}\narguments: {count}\n\
                 stdin cannot be opened\nstdout cannot be opened\n"
            )
        );
    }
}

#[tokio::test]
async fn arguments_are_cleaned_and_the_rest_is_left_to_the_service() {
    let stage = Stage::new(&[("test.Argument", "printf '%s|%s' \"$QREXEC_SERVICE_ARGUMENT\" \"$1\"")]);
    for (given, cleaned) in
        [("a b/c;d\n", "a_b_c_d_"), ("é", "__"), ("-f", "-f"), ("../..", ".._.."), ("a+b", "a+b"), ("$x@:", "_x__")]
    {
        let output = stage.output(&format!("test.Argument+{given}")).await;
        assert_eq!(String::from_utf8(output.stdout).unwrap(), format!("{cleaned}|{cleaned}"));
    }
}

#[tokio::test]
async fn the_program_of_the_argument_comes_before_the_one_of_the_service() {
    let stage = Stage::new(&[("s", "echo any"), ("s+one", "echo one"), ("s+", "echo none"), ("t+one", "echo t")]);
    for (service, output) in
        [("s+one", "one\n"), ("s+two", "any\n"), ("s", "none\n"), ("s+", "none\n"), ("t+one", "t\n")]
    {
        assert_eq!(String::from_utf8(stage.output(service).await.stdout).unwrap(), output, "{service}");
    }
    assert_eq!(stage.output("t+two").await.status.code(), Some(127));
}

#[tokio::test]
async fn services_are_looked_for_in_folders_too_and_links_are_followed() {
    let stage = Stage::with(&[("program", "echo \"$0\"")], ALLOW_ALL, |options| {
        let folders = ["run", "etc"].map(|name| options.folder.join(name));
        for folder in &folders {
            std::fs::create_dir(folder).unwrap();
        }
        for name in ["run/s", "etc/s+x", "etc/t"] {
            std::os::unix::fs::symlink("../program", options.folder.join(name)).unwrap();
        }
        options.installed.get_mut(&vm("sd-proxy")).unwrap().folders = folders.into();
    });
    for (service, path) in [("s", "run/s"), ("s+x", "etc/s+x"), ("s+y", "run/s"), ("t", "etc/t"), ("t+x", "etc/t")] {
        let output = String::from_utf8(stage.output(service).await.stdout).unwrap();
        assert_eq!(output, format!("{}\n", stage.path(path).display()), "{service}");
    }
    assert_eq!(stage.output("u").await.status.code(), Some(127));
}

#[tokio::test]
async fn a_vms_settings_are_in_the_environment_unless_the_installation_knows_better() {
    let stage = Stage::with(&[("s", "echo \"$SD_ONE $SD_TWO $other\"")], ALLOW_ALL, |options| {
        let features = &mut options.system.qubes.get_mut("sd-proxy").unwrap().features;
        for (name, value) in [("vm-config.SD_ONE", "1"), ("vm-config.SD_TWO", "2"), ("other", "3")] {
            features.insert(name.to_owned(), value.to_owned());
        }
        let installation = options.installed.get_mut(&vm("sd-proxy")).unwrap();
        installation.environment = BTreeMap::from([("SD_TWO".to_owned(), "two".to_owned())]);
    });
    assert_eq!(stage.output("s").await.stdout, b"1 two \n");
}

#[tokio::test]
async fn the_user_comes_from_the_policy_and_before_that_from_the_services_configuration() {
    let policy = "s * * * allow\n* * * * allow user=journalist\n";
    let services = [("s", "echo \"$USER\""), ("t", "echo \"$USER\""), ("u", "echo \"$USER\"")];
    let stage = Stage::with(&services, policy, |options| {
        let config = &mut options.installed.get_mut(&vm("sd-proxy")).unwrap().rpc_config;
        config.insert("u".to_owned(), "force-user='root'\n".to_owned());
    });
    for (service, expected) in [("s", None), ("t", Some("journalist")), ("u", Some("root"))] {
        let output = String::from_utf8(stage.output(service).await.stdout).unwrap();
        assert_eq!(output.trim_end(), expected.unwrap_or_default());
        let recorded = stage.kinds().into_iter().rev().find_map(|kind| match kind {
            EventKind::Started { user, .. } => Some(user),
            _ => None,
        });
        assert_eq!(recorded.unwrap().as_deref(), expected);
    }
}

#[tokio::test]
async fn a_bad_configuration_fails_every_call_of_its_service() {
    let stage = Stage::with(&[("s", "exit 3"), ("t", "exit 4")], ALLOW_ALL, |options| {
        let config = &mut options.installed.get_mut(&vm("sd-proxy")).unwrap().rpc_config;
        config.insert("s".to_owned(), "wait-for-session=yes\n".to_owned());
        config.insert("s+fine".to_owned(), "wait-for-session=false\nunknown=1\n".to_owned());
        config.insert("t".to_owned(), "skip-service-descriptor=true\n".to_owned());
    });
    for (service, code) in [("s", 125), ("s+x", 125), ("s+fine", 3), ("t", 4)] {
        assert_eq!(stage.output(service).await.status.code(), Some(code), "{service}");
    }
    assert_eq!(stage.broker().counts().failed, 2);
}

#[tokio::test]
async fn a_service_may_wait_for_the_session() {
    let stage = Stage::with(&[("s", "exit 3"), ("t", "exit 4")], ALLOW_ALL, |options| {
        let config = &mut options.installed.get_mut(&vm("sd-proxy")).unwrap().rpc_config;
        config.insert("s".to_owned(), "wait-for-session=true\n".to_owned());
    });
    let vms = stage.broker().vms();
    vms.hold_session("sd-proxy", true).unwrap();
    let mut waiting = stage.call("s");
    // Another one, which does not wait, overtakes it.
    assert_eq!(stage.output("t").await.status.code(), Some(4));
    assert_eq!(stage.broker().counts().started, 1);
    vms.hold_session("sd-proxy", false).unwrap();
    assert_eq!(waiting.code().await, Some(3));
}

use clap::{Command as Program, CommandFactory as _};

use super::super::exit::Exit;
use super::*;

#[test]
fn the_command_line_is_consistent() {
    Args::command().debug_assert();
}

/// Parses the examples of a command's subcommands, and of theirs; gives how many there are.
fn parse_examples(command: &Program) -> usize {
    let mut examples = 0;
    for command in command.get_subcommands() {
        let help = command.get_after_help().map(ToString::to_string).unwrap_or_default();
        for line in help.lines().filter(|line| line.starts_with("  splitdrop")) {
            let line = line.split(" < ").next().unwrap_or_default().replace("'candid marmot'", "candid");
            let line = line.replace("'Thank you.'", "Thanks");
            Args::try_parse_from(line.split_whitespace()).unwrap();
            examples += 1;
        }
        assert!(help.contains("Example"), "{} has no example", command.get_name());
        examples += parse_examples(command);
    }
    examples
}

#[test]
fn every_example_in_the_help_parses() {
    assert_eq!(parse_examples(&Args::command()), 77);
}

#[test]
fn acts_are_named_by_numbers_or_all_of_them() {
    let parse = |line: &str| Args::try_parse_from(line.split_whitespace());
    for deal in ["retry", "cancel", "dismiss"] {
        assert!(parse(&format!("splitdrop {deal} 3 18446744073709551615")).is_ok());
        assert!(parse(&format!("splitdrop {deal} --all")).is_ok());
        for wrong in ["", "--all 3", "-1", "3a", "18446744073709551616"] {
            assert!(parse(&format!("splitdrop {deal} {wrong}")).is_err(), "{deal} {wrong}");
        }
    }
    // To give up a deletion is a decision about that one.
    assert!(parse("splitdrop restore --all").is_err() && parse("splitdrop restore 3").is_ok());
}

#[test]
fn what_is_fetched_is_named_or_all_of_it() {
    let parse = |line: &str| Args::try_parse_from(format!("splitdrop download {line}").split_whitespace());
    for right in ["9b04 9b05", "--all", "--stop 9b04", "--stop --all", "--wait 9b04", "--all --no-wait"] {
        assert!(parse(right).is_ok(), "{right}");
    }
    for wrong in ["", "--all 9b04", "--stop", "--wait", "9b04 --wait --no-wait", "--stop --all --wait"] {
        assert!(parse(wrong).is_err(), "{wrong}");
    }
}

#[test]
fn what_is_copied_goes_to_one_place() {
    let parse = |line: &str| Args::try_parse_from(format!("splitdrop {line}").split_whitespace());
    for right in ["export 9b04 9b05 --to a", "export 9b04 --usb --passphrase-stdin", "print --check", "open 9b04"] {
        assert!(parse(right).is_ok(), "{right}");
    }
    for wrong in [
        "export 9b04",
        "export --to a",
        "export --usb",
        "export 9b04 --to a --usb",
        "export --check --to a",
        "export 9b04 --usb --check",
        "export 9b04 --to a --passphrase-stdin",
        "print",
        "print 9b04 9b05",
        "open",
        "transcript",
    ] {
        assert!(parse(wrong).is_err(), "{wrong}");
    }
}

#[test]
fn a_fingerprint_is_read_as_people_write_it() {
    let digits = "0123 4567 89ab cdef 0123  4567 89AB CDEF 0123 4567";
    assert_eq!(fingerprint(digits).unwrap().as_str(), "0123456789ABCDEF0123456789ABCDEF01234567");
    for wrong in ["", "0123", &digits.replace('a', "g"), &format!("{digits} 0"), &format!("0x{digits}")] {
        assert!(fingerprint(wrong).is_err(), "{wrong}");
    }
    // Nobody trusts what was not compared.
    assert!(Args::try_parse_from(["splitdrop", "trust-key", "candid"]).is_err());
}

#[test]
fn a_reply_may_begin_like_an_option() {
    let args = Args::try_parse_from(["splitdrop", "reply", "candid", "--message", "--no, never"]).unwrap();
    assert!(
        matches!(args.command, Command::Reply(Reply { message: Some(text), draft: false, .. }) if text == "--no, never")
    );
}

#[test]
fn nothing_is_deleted_that_is_not_named() {
    for line in ["delete", "delete source", "delete item --yes", "delete conversation", "star", "seen", "restore"] {
        let words = ["splitdrop"].into_iter().chain(line.split_whitespace());
        assert!(Args::try_parse_from(words).is_err(), "{line}");
    }
    // A conversation is deleted as it was shown: one at a time.
    assert!(Args::try_parse_from(["splitdrop", "delete", "conversation", "one", "two"]).is_err());
}

#[test]
fn the_help_lists_every_exit_code() {
    let listed: Vec<u8> = EXIT_CODES
        .lines()
        .skip(1)
        .take_while(|line| !line.is_empty())
        .map(|line| line.split_whitespace().next().unwrap().parse().unwrap())
        .collect();
    assert_eq!(listed, [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 130]);
    for exit in [Exit::Success, Exit::Conflict, Exit::Refused, Exit::KeyUnreachable, Exit::Sealed, Exit::Interrupted] {
        assert!(listed.contains(&(exit as u8)));
    }
}

#[test]
fn the_help_names_all_that_decides_where_things_are() {
    let help = Args::command().render_long_help().to_string();
    let help = help.split_whitespace().collect::<Vec<_>>().join(" ");
    for name in [
        "SPLITDROP_HOME",
        "SPLITDROP_CONFIG",
        "SPLITDROP_QREXEC",
        "SPLITDROP_LOG",
        "$XDG_DATA_HOME/splitdrop, else ~/.local/share/splitdrop",
        "$XDG_CONFIG_HOME/splitdrop/config.toml, else ~/.config/splitdrop/config.toml",
        "$XDG_RUNTIME_DIR/splitdrop/control.sock, else",
    ] {
        assert!(help.contains(name), "{name} is not in\n{help}");
    }
}

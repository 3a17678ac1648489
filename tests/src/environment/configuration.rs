//! The client's configuration file: what stands in it, and those that many tests want.

use std::time::Duration;

/// A client's configuration with which nothing happens by itself after a login but the first sync: tests say what happens
/// when.
pub const QUIET: &str = "\
fetch_messages = false
[sync]
interval_ms = 86400000
first_wait_ms = 86400000
most_wait_ms = 86400000
stale_ms = 86400000
";

/// A client's configuration in which messages come by themselves, and syncs when a test says so. What fails is tried again
/// soon.
pub const ASKED: &str = "\
[sync]
interval_ms = 86400000
first_wait_ms = 86400000
most_wait_ms = 86400000
[acts]
first_wait_ms = 50
most_wait_ms = 200
";

/// A configuration, and for how long a deletion waits in it before it is first sent.
pub(super) fn with_grace(config: &str, grace: Duration) -> String {
    const TABLE: &str = "[acts]\n";
    let setting = format!("delete_grace_ms = {}\n", grace.as_millis());
    match config.split_once(TABLE) {
        Some((before, after)) => format!("{before}{TABLE}{setting}{after}"),
        None => format!("{config}\n{TABLE}{setting}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_setting_stands_in_its_table_whether_there_is_one_or_not() {
        let ms = Duration::from_millis(7);
        let none = with_grace("fetch_messages = false\n[sync]\ninterval_ms = 1\n", ms);
        assert!(none.ends_with("interval_ms = 1\n\n[acts]\ndelete_grace_ms = 7\n"), "{none}");
        let some = with_grace("[acts]\nfirst_wait_ms = 5\n[sync]\n", ms);
        assert_eq!(some, "[acts]\ndelete_grace_ms = 7\nfirst_wait_ms = 5\n[sync]\n");
    }
}

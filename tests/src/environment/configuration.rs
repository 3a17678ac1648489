//! The client's configuration file.

use std::time::Duration;

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

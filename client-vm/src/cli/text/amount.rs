//! Amounts in words: bytes, shares, spans of time.

use std::time::Duration;

use protocol::value::Timestamp;

/// Units of bytes, each a thousand of the one before, as file managers show them.
const UNITS: [&str; 6] = ["kB", "MB", "GB", "TB", "PB", "EB"];
const MINUTE: u64 = 60;
const HOUR: u64 = 60 * MINUTE;
const DAY: u64 = 24 * HOUR;

/// So many bytes, to a tenth of a unit, and never more than they are.
pub(in crate::cli) fn bytes(count: u64) -> String {
    if count < 1000 {
        return format!("{count} B");
    }
    let (mut unit_bytes, mut shown) = (1_u64, "");
    for unit in UNITS {
        if count / unit_bytes < 1000 {
            break;
        }
        unit_bytes = unit_bytes.saturating_mul(1000);
        shown = unit;
    }
    let tenths = count / (unit_bytes / 10);
    format!("{}.{} {shown}", tenths / 10, tenths % 10)
}

/// How much of the whole that is, in percent; 100 only where it is all of it.
pub(super) fn percent(part: u64, whole: u64) -> u64 {
    if part >= whole {
        return 100;
    }
    let percent = u128::from(part).saturating_mul(100).checked_div(u128::from(whole)).unwrap_or_default();
    u64::try_from(percent).unwrap_or(100)
}

/// A span of time in its largest unit. Two days are the first that count as days.
pub(super) fn span(span: Duration) -> String {
    let seconds = span.as_secs();
    match seconds {
        0..MINUTE => format!("{seconds} s"),
        MINUTE..HOUR => format!("{} min", seconds / MINUTE),
        _ if seconds < 2 * DAY => format!("{} h", seconds / HOUR),
        _ => format!("{} days", seconds / DAY),
    }
}

/// How long ago that was. Where clocks were set, it may be yet to come.
pub(super) fn ago(then: Timestamp, now: Timestamp) -> String {
    let past = between(then, now);
    if past < Duration::from_secs(1) { "just now".to_owned() } else { format!("{} ago", span(past)) }
}

/// How long it takes until then.
pub(super) fn until(then: Timestamp, now: Timestamp) -> String {
    let rest = between(now, then);
    if rest < Duration::from_secs(1) { "now".to_owned() } else { format!("in {}", span(rest)) }
}

fn between(earlier: Timestamp, later: Timestamp) -> Duration {
    Duration::from_micros(later.get().saturating_sub(earlier.get()))
}

#[cfg(test)]
mod tests {
    use super::super::super::samples::at;
    use super::*;

    #[test]
    fn bytes_have_a_unit_and_at_most_four_digits() {
        for (count, shown) in [
            (0, "0 B"),
            (999, "999 B"),
            (1000, "1.0 kB"),
            (1_999, "1.9 kB"),
            (999_999, "999.9 kB"),
            (1_000_000, "1.0 MB"),
            (500_000_000, "500.0 MB"),
            (25_000_000_000, "25.0 GB"),
            (u64::MAX, "18.4 EB"),
        ] {
            assert_eq!(bytes(count), shown);
        }
    }

    #[test]
    fn a_share_is_whole_only_at_the_end() {
        let shares = [(0, 3), (1, 3), (999, 1000), (3, 3), (4, 3), (0, 0), (u64::MAX - 1, u64::MAX)];
        assert_eq!(shares.map(|(part, whole)| percent(part, whole)), [0, 33, 99, 100, 100, 100, 99]);
    }

    #[test]
    fn spans_have_one_unit() {
        let spans = [0, 59, 60, 3599, 3600, 47 * 3600, 48 * 3600];
        assert_eq!(
            spans.map(|seconds| span(Duration::from_secs(seconds))),
            ["0 s", "59 s", "1 min", "59 min", "1 h", "47 h", "2 days"]
        );
    }

    #[test]
    fn what_was_and_what_comes_is_told_from_now() {
        assert_eq!(
            [ago(at(10), at(75)), ago(at(10), at(10)), ago(at(10), at(5))],
            ["1 min ago", "just now", "just now"]
        );
        assert_eq!([until(at(75), at(10)), until(at(10), at(10)), until(at(5), at(10))], ["in 1 min", "now", "now"]);
    }
}

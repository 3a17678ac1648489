//! The shapes in which servers of different ages answer.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

/// Which age of server to be. The routes are the same; time stamps and a few fields differ.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ApiFlavour {
    /// As [`Classic`](Self::Classic), but the expiration of a session carries an offset and a `Z`: `+00:00Z`.
    Older,
    /// Every time stamp has six digits of fraction and ends in `Z`.
    #[default]
    Classic,
    /// Dates without a zone, whose fraction may be absent; an expiration with `+00:00`; sources with `has_attachment`
    /// and `is_seen`; login hints; `X-Request-ID` returned.
    Newer,
}

impl ApiFlavour {
    /// Whether this is a server that speaks the second version of the API as well, and so has its small additions.
    pub(crate) fn is_newer(self) -> bool {
        match self {
            Self::Older | Self::Classic => false,
            Self::Newer => true,
        }
    }

    /// A date of a record, in UTC.
    pub(crate) fn date(self, at: Timestamp) -> String {
        match self {
            Self::Older | Self::Classic => zulu(at),
            Self::Newer => iso(at),
        }
    }

    /// When a session ends.
    pub(crate) fn expiration(self, at: Timestamp) -> String {
        match self {
            Self::Older => format!("{}+00:00Z", iso(at)),
            Self::Classic => zulu(at),
            Self::Newer => format!("{}+00:00", iso(at)),
        }
    }
}

fn zulu(at: Timestamp) -> String {
    at.strftime("%Y-%m-%dT%H:%M:%S%.6fZ").to_string()
}

/// Without a zone, and without a fraction where there is none.
fn iso(at: Timestamp) -> String {
    let micros = at.subsec_nanosecond() / 1_000;
    let format = match micros {
        0 => "%Y-%m-%dT%H:%M:%S",
        _ => "%Y-%m-%dT%H:%M:%S%.6f",
    };
    at.strftime(format).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_flavour_writes_time_its_own_way() {
        let fraction = Timestamp::constant(1_729_785_077, 123_456_000);
        let whole = Timestamp::constant(1_729_785_077, 0);
        let cases = [
            (ApiFlavour::Older, fraction, "2024-10-24T15:51:17.123456Z", "2024-10-24T15:51:17.123456+00:00Z"),
            (ApiFlavour::Classic, whole, "2024-10-24T15:51:17.000000Z", "2024-10-24T15:51:17.000000Z"),
            (ApiFlavour::Newer, fraction, "2024-10-24T15:51:17.123456", "2024-10-24T15:51:17.123456+00:00"),
            (ApiFlavour::Newer, whole, "2024-10-24T15:51:17", "2024-10-24T15:51:17+00:00"),
        ];
        for (flavour, at, date, expiration) in cases {
            assert_eq!(flavour.date(at), date, "{flavour:?}");
            assert_eq!(flavour.expiration(at), expiration, "{flavour:?}");
        }
    }
}

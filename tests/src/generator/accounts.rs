//! The two journalists of every generated world, with what they need to sign in.
//!
//! These are staging secrets: they are public, and no deployment may know them.

use jiff::Timestamp;
use totp_rs::{Algorithm, TOTP};

/// Digits of a one-time code.
const DIGITS: usize = 6;
/// Steps before and after the present one whose code still counts.
const SKEW: u8 = 1;
/// Length of a step, in seconds.
const STEP_SECS: u64 = 30;

/// What a journalist signs in with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Account {
    /// The name to sign in with.
    pub username: &'static str,
    /// The passphrase, 14 to 128 characters.
    pub passphrase: &'static str,
    /// The shared secret of the second factor, raw.
    pub secret: &'static [u8],
}

/// A journalist with a name beyond ASCII, who is an administrator.
pub const MARLOW: Account = Account {
    username: "marlow",
    passphrase: "seven herons mapped the frozen harbour twice",
    secret: b"splitdrop-staging-01",
};

/// A journalist who never gave a name.
pub const TERNBERG: Account = Account {
    username: "ternberg",
    passphrase: "a borrowed lantern outlives every careful storm",
    secret: b"splitdrop-staging-02",
};

impl Account {
    /// The one-time code at `time`: six digits.
    pub fn code_at(&self, time: Timestamp) -> String {
        self.totp().generate(seconds(time))
    }

    /// The secret in base32, as an authenticator takes it.
    pub fn secret_base32(&self) -> String {
        self.totp().get_secret_base32()
    }

    /// Whether `code` belongs to the step of `time` or to a neighbouring one.
    pub(crate) fn accepts(&self, code: &str, time: Timestamp) -> bool {
        self.totp().check(code, seconds(time))
    }

    fn totp(&self) -> TOTP {
        TOTP::new_unchecked(Algorithm::SHA1, DIGITS, SKEW, STEP_SECS, self.secret.to_vec())
    }
}

/// Seconds since 1970; before it there are no codes, so 0 does.
fn seconds(time: Timestamp) -> u64 {
    u64::try_from(time.as_second()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_are_those_of_the_standard() {
        // RFC 6238, appendix B, SHA1, cut to six digits.
        let account = Account { username: "", passphrase: "", secret: b"12345678901234567890" };
        for (time, code) in [(59, "287082"), (1_111_111_109, "081804"), (20_000_000_000, "353130")] {
            assert_eq!(account.code_at(Timestamp::from_second(time).unwrap()), code, "at {time}");
        }
    }

    #[test]
    fn neighbouring_steps_count_and_no_others() {
        let at = |seconds: i64| Timestamp::from_second(1_700_000_010 + seconds).unwrap();
        let code = MARLOW.code_at(at(0));
        for (seconds, accepted) in [(-60, false), (-30, true), (0, true), (30, true), (60, false)] {
            assert_eq!(MARLOW.accepts(&code, at(seconds)), accepted, "after {seconds} s");
        }
    }

    #[test]
    fn both_accounts_obey_the_servers_rules() {
        for account in [MARLOW, TERNBERG] {
            assert!(account.username.len() >= 3);
            assert!((14..=128).contains(&account.passphrase.len()));
            assert_eq!(account.secret_base32().len(), 32);
        }
        assert_ne!(MARLOW.secret, TERNBERG.secret);
    }
}

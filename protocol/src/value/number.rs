//! Numbers with a range. All fit a signed 64-bit column, so that no store has to check again.

use serde::{Deserialize, Serialize};

use super::{Problem, ValueError};

macro_rules! ranged {
    ($(#[$meta:meta])* $name:ident, $what:literal, $max:expr) => {
        $(#[$meta])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(try_from = "u64")]
        pub struct $name(u64);

        impl $name {
            /// The largest value.
            pub const MAX: Self = Self($max);

            /// Checks that `number` is at most [`Self::MAX`].
            ///
            /// # Errors
            /// [`ValueError`] when it is not.
            pub fn try_new(number: u64) -> Result<Self, ValueError> {
                if number <= $max {
                    Ok(Self(number))
                } else {
                    Err(ValueError { what: $what, problem: Problem::OutOfRange })
                }
            }

            /// The number.
            #[must_use]
            pub fn get(self) -> u64 {
                self.0
            }

            /// The number, as a store's column holds it.
            #[must_use]
            pub fn as_i64(self) -> i64 {
                // `MAX` is at most i64::MAX.
                i64::try_from(self.0).unwrap_or(i64::MAX)
            }
        }

        impl TryFrom<u64> for $name {
            type Error = ValueError;

            fn try_from(number: u64) -> Result<Self, ValueError> {
                Self::try_new(number)
            }
        }
    };
}

ranged! {
    /// An item's place in its conversation, as the server counts it; also a source's count of items ever.
    ///
    /// 0 to 2^63 - 1. In version 1 of the Journalist API it is the number before the first `-` of a file name, in
    /// version 2 the item's `interaction_count`.
    OrderNumber, "an order number", i64::MAX.unsigned_abs()
}
ranged! {
    /// A length in bytes, 0 to 2^63 - 1.
    Size, "a size", i64::MAX.unsigned_abs()
}
ranged! {
    /// A moment in UTC: microseconds since 1970-01-01T00:00:00Z, up to the end of the year 9999.
    Timestamp, "a time stamp", 253_402_300_799_999_999
}

//! The id by which one call is found in the logs of both VMs.

use std::fmt;

use serde::{Deserialize, Serialize};

/// Names a call in the logs of both VMs and at the server. Chosen by the client at random, with a meaning to nobody: 16 bytes
/// on the wire, shown as a hyphenated UUID. All bytes are valid.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct RequestId([u8; 16]);

impl RequestId {
    /// The id of these bytes.
    #[must_use]
    pub const fn new(bytes: [u8; 16]) -> Self {
        Self(bytes)
    }

    /// The id of the request with this number, from 0, of those that the call needs: the call's own for the first, and for
    /// the others one that differs from it in the last four digits only.
    #[must_use]
    pub fn numbered(self, number: u16) -> Self {
        let mut bytes = self.0;
        let [.., high, low] = &mut bytes;
        [*high, *low] = u16::from_be_bytes([*high, *low]).wrapping_add(number).to_be_bytes();
        Self(bytes)
    }
}

impl fmt::Display for RequestId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, byte) in self.0.iter().enumerate() {
            if matches!(at, 4 | 6 | 8 | 10) {
                f.write_str("-")?;
            }
            write!(f, "{byte:02x}")?;
        }
        Ok(())
    }
}

impl fmt::Debug for RequestId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RequestId({self})")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ID: RequestId = RequestId::new([
        0x2b, 0x3b, 0xa0, 0xee, 0xc6, 0xd8, 0x4c, 0x4f, 0xa0, 0xcf, 0x73, 0x15, 0x49, 0xff, 0xff, 0xfe,
    ]);

    #[test]
    fn is_shown_as_a_uuid() {
        assert_eq!(ID.to_string(), "2b3ba0ee-c6d8-4c4f-a0cf-731549fffffe");
    }

    #[test]
    fn the_requests_of_a_call_differ_in_the_last_four_digits() {
        assert_eq!(ID.numbered(0), ID);
        assert_eq!(ID.numbered(1).to_string(), "2b3ba0ee-c6d8-4c4f-a0cf-731549ffffff");
        assert_eq!(ID.numbered(2).to_string(), "2b3ba0ee-c6d8-4c4f-a0cf-731549ff0000");
    }
}

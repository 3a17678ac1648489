//! Bounds for what hostile messages and files may become.

/// How much may come out of what was encrypted or packed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// The most that may come out, in bytes.
    pub bytes: u64,
    /// The most bytes that may come out for each byte that goes in. It counts only past [`Limits::ALWAYS`].
    pub ratio: u32,
    /// How many layers of encryption a message may have, and how many of compression.
    pub layers: u32,
}

impl Limits {
    /// So many bytes are never refused for their ratio, since small things that pack well are no attack: 1 MiB.
    pub const ALWAYS: u64 = 1 << 20;

    /// The most that may come out of so many bytes, in bytes.
    pub(crate) fn of(self, bytes: u64) -> u64 {
        bytes.saturating_mul(self.ratio.into()).max(Self::ALWAYS).min(self.bytes)
    }
}

impl Default for Limits {
    fn default() -> Self {
        Self { bytes: 2 << 30, ratio: 200, layers: 2 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn f5_small_messages_are_never_refused_for_their_ratio() {
        let limits = Limits::default();
        assert_eq!(limits.of(0), Limits::ALWAYS);
        assert_eq!(limits.of(5_000), Limits::ALWAYS);
        assert_eq!(limits.of(1 << 20), 200 << 20);
        assert_eq!(limits.of(u64::MAX), 2 << 30);
    }
}

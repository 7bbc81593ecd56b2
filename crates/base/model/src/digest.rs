//! A digest that tells different contents apart, nothing more: FNV-1a of 64 bits, byte by byte.

/// The digest of what it has taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Digest(pub u64);

impl Default for Digest {
    fn default() -> Self {
        Self(0xcbf2_9ce4_8422_2325)
    }
}

impl Digest {
    /// Takes what comes next.
    pub fn take(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.0 = (self.0 ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3);
        }
    }

    /// Of all of it.
    pub fn of(bytes: &[u8]) -> u64 {
        let mut digest = Self::default();
        digest.take(bytes);
        digest.0
    }
}

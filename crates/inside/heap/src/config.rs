//! The configurations of the heap: one word, chosen when the program starts.
//!
//! ```text
//!  1 y      the digit: randomisation level      the letter: compaction
//!           0 slots in address order             n  never
//!           1 shuffled when a cache is filled    y  yes
//!           2 and at each free
//!  h        hardened: level 2, no compaction, every free checked, freed memory held back
//! ```
//!
//! The five names of the published artifact (Mesh, PLDI 2019, section 6) are 0n, 2n, 0y, 1y, 2y;
//! 1n completes the table.

/// Every valid configuration; the index is what the statistics page carries.
pub const NAMES: [&str; 7] = ["0n", "1n", "2n", "0y", "1y", "2y", "h"];

/// A configuration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    /// Randomisation level: 0, 1 or 2.
    pub randomise: u8,
    /// Whether the heap compacts.
    pub compact: bool,
    /// Whether every free is checked, freed memory is held back and wiped, and large objects are
    /// followed by a guard page.
    pub hardened: bool,
}

impl Config {
    /// The default, `1y`.
    pub const DEFAULT: Self = Self { randomise: 1, compact: true, hardened: false };

    /// The configuration of this name, or `None` if there is none.
    pub fn parse(name: &[u8]) -> Option<Self> {
        match name {
            [b'h'] => Some(Self { randomise: 2, compact: false, hardened: true }),
            [level @ b'0'..=b'2', letter @ (b'n' | b'y')] => {
                Some(Self { randomise: level - b'0', compact: *letter == b'y', hardened: false })
            }
            _ => None,
        }
    }

    /// Index into [`NAMES`].
    pub fn index(self) -> usize {
        match self {
            Self { hardened: true, .. } => 6,
            Self { randomise, compact, .. } => usize::from(randomise) + 3 * usize::from(compact),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_parses_to_its_own_index() {
        for (index, name) in NAMES.iter().enumerate() {
            assert_eq!(Config::parse(name.as_bytes()).map(Config::index), Some(index), "{name}");
        }
    }

    #[test]
    fn other_words_are_refused() {
        for name in ["", "y", "3y", "1", "1yy", "hh", "1Y"] {
            assert_eq!(Config::parse(name.as_bytes()), None, "{name}");
        }
    }
}

//! Sizes of problems.

use std::fmt;
use std::str::FromStr;

/// Size of a problem, in the benchmark's own letters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Class {
    /// A sample: well under a second.
    S,
    /// A workstation of 1994.
    W,
    /// The smallest standard size.
    A,
    /// Four times as much work as A, or more.
    B,
}

impl Class {
    /// Every class, smallest first.
    pub const ALL: [Self; 4] = [Self::S, Self::W, Self::A, Self::B];

    /// The entry of this class in a table that has one for each.
    pub(super) fn of<T: Copy>(self, table: [T; 4]) -> T {
        table[self as usize]
    }
}

impl fmt::Display for Class {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, out)
    }
}

impl FromStr for Class {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        Self::ALL
            .into_iter()
            .find(|class| class.to_string().eq_ignore_ascii_case(text))
            .ok_or_else(|| format!("there is no class {text:?}; valid classes: S, W, A, B"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes_are_read_in_either_case_and_others_are_named() {
        assert_eq!("a".parse(), Ok(Class::A));
        assert_eq!("W".parse(), Ok(Class::W));
        assert!("C".parse::<Class>().unwrap_err().contains("S, W, A, B"));
    }
}

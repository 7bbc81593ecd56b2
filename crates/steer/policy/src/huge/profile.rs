//! The preloaded profile: what huge pages and eager paging are worth, by place.
//!
//! ```text
//!   POLICY,SECTION,BENEFIT[,QUANTITY,COMPARATOR,VALUE]*
//!   huge,mmap,243632025,addr,>,0x0,addr,<,0x7fcc76400000
//! ```
//!
//! No header, a row a line, numbers decimal or `0x`. `POLICY` is `huge` or `eager`; `SECTION` one of `code data heap
//! mmap`; `QUANTITY` one of `section_off addr len prot flags fd off`; `COMPARATOR` `=`, `>` or `<`. The triples of a
//! row must all hold. `addr` and `section_off` look at each page of a mapping and so cut it into ranges; the others
//! look at the mapping as a whole. The first row that holds for a page decides for it.
//!
//! At the grain of pages a bound names the first page in (`>`) or the first page out (`<`), as the original splits;
//! so `addr,>,0x0,addr,<,0x2000` is two pages. `section_off` counts up from the start of code, data and heap, and down
//! from the top of the mmap area, as that section grows.
//!
//! Ours beyond the original: a line `# unit: ns` sets the unit of all benefits (cycles otherwise), text after ` #` is
//! the why of its row, and the quantity `site` compares the place in the program that made the mapping
//! (`libc.so.6+0x9f2e1`, by `=`).
//!
//! Always so: what is printed parses to the same profile; an original file is printed byte for byte as it was; ranges
//! of a mapping do not overlap and lie in it; no text makes the parser panic.

use std::fmt;

use pagemill_model::named;

use super::account::Unit;
use super::view::Section;

mod lookup;
pub use lookup::{Mapping, Range};
#[cfg(test)]
mod tests;

named! {
    /// What a row is about.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
    pub enum Kind {
        /// Huge pages: the benefit of one.
        Huge = "huge",
        /// Eager paging: the benefit of a page.
        Eager = "eager",
    }
}

named! {
    /// What a constraint compares.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum Quantity {
        /// Bytes from the start of the section.
        SectionOff = "section_off",
        /// The address of a page.
        Addr = "addr",
        /// Length of the mapping, bytes.
        Len = "len",
        /// Protection bits of the mapping.
        Prot = "prot",
        /// Flags of the mapping.
        Flags = "flags",
        /// File descriptor of the mapping.
        Fd = "fd",
        /// Offset in the file.
        Off = "off",
    }
}

named! {
    /// How a constraint compares.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum Comparator {
        /// `=`
        Equal = "=",
        /// `>`
        Greater = ">",
        /// `<`
        Less = "<",
    }
}

/// A condition of a row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Constraint {
    /// A quantity against a number.
    Number(Quantity, Comparator, u64),
    /// The place that made the mapping.
    Site(String),
}

/// A row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProfileRow {
    /// What it is about.
    pub kind: Kind,
    /// The section that it is for.
    pub section: Section,
    /// The benefit, in the profile's unit.
    pub benefit: u64,
    /// All must hold.
    pub constraints: Vec<Constraint>,
    /// Why, if the file says so. One line.
    pub why: Option<String>,
}

impl ProfileRow {
    fn names_site(&self) -> bool {
        self.constraints.iter().any(|constraint| matches!(constraint, Constraint::Site(_)))
    }
}

/// A profile.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Profile {
    /// Unit of the benefits.
    pub unit: Unit,
    /// The rows, first match first.
    pub rows: Vec<ProfileRow>,
}

impl Default for Profile {
    fn default() -> Self {
        Self { unit: Unit::Cycles, rows: Vec::new() }
    }
}

/// What is wrong in a profile, and where: `3:13: expected …`, to be put behind the file's name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Error {
    /// Line, from 1.
    pub line: usize,
    /// Column, in characters from 1.
    pub column: usize,
    /// What was expected, and what is there.
    pub message: String,
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: {}", self.line, self.column, self.message)
    }
}

impl std::error::Error for Error {}

const UNIT: &str = "# unit: ";

impl Profile {
    /// Reads a profile.
    ///
    /// # Errors
    /// The first wrong word, with its line and column and what was expected.
    pub fn parse(text: &str) -> Result<Self, Error> {
        let mut profile = Self::default();
        for (at, line) in text.lines().enumerate() {
            let line = line.strip_suffix('\r').unwrap_or(line);
            if line.trim().is_empty() {
                continue;
            }
            if line.trim_start().starts_with('#') {
                if let Some(unit) = line.trim().strip_prefix(UNIT.trim_end()) {
                    profile.unit = match unit.trim() {
                        "ns" => Unit::Nanos,
                        "cycles" => Unit::Cycles,
                        other => {
                            return Err(Error {
                                line: at + 1,
                                column: line.chars().count() - other.chars().count() + 1,
                                message: format!("expected the unit ns or cycles, found {other:?}"),
                            });
                        }
                    };
                }
                continue;
            }
            profile.rows.push(row(at + 1, line)?);
        }
        Ok(profile)
    }

    /// Whether a row compares the place that made a mapping.
    #[must_use]
    pub fn names_sites(&self) -> bool {
        self.rows.iter().any(ProfileRow::names_site)
    }

    /// Whether the original reads this profile as it is meant; the text says what speaks against it.
    ///
    /// # Errors
    /// What speaks against it.
    pub fn original(&self) -> Result<(), String> {
        if self.unit != Unit::Cycles {
            return Err(format!(
                "benefits are in {}, the original counts cycles",
                self.unit.name()
            ));
        }
        match self.rows.iter().position(ProfileRow::names_site) {
            Some(at) => {
                Err(format!("row {} names a site, which the original does not know", at + 1))
            }
            None => Ok(()),
        }
    }

    /// The profile without what the original does not know: reasons go, rows by site go, nanoseconds become cycles
    /// of `mhz` cycles a microsecond.
    #[must_use]
    pub fn to_original(&self, mhz: u64) -> Self {
        let scaled = |benefit: u64| match self.unit {
            Unit::Nanos => {
                u64::try_from(u128::from(benefit) * u128::from(mhz) / 1000).unwrap_or(u64::MAX)
            }
            Unit::Cycles | Unit::Rule => benefit,
        };
        let rows = self.rows.iter().filter(|row| !row.names_site()).map(|row| ProfileRow {
            benefit: scaled(row.benefit),
            why: None,
            ..row.clone()
        });
        Self { unit: Unit::Cycles, rows: rows.collect() }
    }
}

/// The original's form where nothing of ours is in it, ours otherwise.
impl fmt::Display for Profile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.unit != Unit::Cycles {
            writeln!(f, "{UNIT}{}", self.unit.name())?;
        }
        for row in &self.rows {
            write!(f, "{},{},{}", row.kind.name(), row.section.name(), row.benefit)?;
            for constraint in &row.constraints {
                match constraint {
                    Constraint::Number(quantity, comparator, value) => {
                        write!(f, ",{},{},{value:#x}", quantity.name(), comparator.name())?;
                    }
                    Constraint::Site(site) => write!(f, ",site,=,{site}")?,
                }
            }
            match &row.why {
                Some(why) => writeln!(f, "  # {why}")?,
                None => writeln!(f)?,
            }
        }
        Ok(())
    }
}

/// The words of a line with their columns.
struct Tokens<'a> {
    line: usize,
    rest: Option<&'a str>,
    column: usize,
}

impl<'a> Tokens<'a> {
    /// The next word and its column; `None` at the end of the line.
    fn next(&mut self) -> Option<(usize, &'a str)> {
        let rest = self.rest?;
        let (word, after) = match rest.split_once(',') {
            Some((word, after)) => (word, Some(after)),
            None => (rest, None),
        };
        let column = self.column;
        self.column += word.chars().count() + 1;
        self.rest = after;
        Some((column + word.chars().take_while(|c| c.is_whitespace()).count(), word.trim()))
    }

    fn wrong(&self, column: usize, expected: &str, found: Option<&str>) -> Error {
        let found = found.filter(|word| !word.is_empty());
        let found = found.map_or_else(|| "nothing".to_owned(), |word| format!("{word:?}"));
        Error { line: self.line, column, message: format!("expected {expected}, found {found}") }
    }

    /// The next word, understood; an error says what was expected.
    fn expect<T>(
        &mut self,
        expected: &str,
        understand: impl Fn(&'a str) -> Option<T>,
    ) -> Result<T, Error> {
        match self.next() {
            None => Err(self.wrong(self.column, expected, None)),
            Some((column, word)) => {
                understand(word).ok_or_else(|| self.wrong(column, expected, Some(word)))
            }
        }
    }
}

const NUMBER: &str = "a number such as 4096 or 0x1000";

/// Decimal, or hexadecimal after `0x`. A leading zero is refused: the original would read octal.
fn number(word: &str) -> Option<u64> {
    let digits = |text: &str, radix| {
        let plain = !text.is_empty() && text.chars().all(|c| c.is_digit(radix));
        plain.then(|| u64::from_str_radix(text, radix).ok()).flatten()
    };
    match word.strip_prefix("0x").or_else(|| word.strip_prefix("0X")) {
        Some(hexadecimal) => digits(hexadecimal, 16),
        None if word.len() > 1 && word.starts_with('0') => None,
        None => digits(word, 10),
    }
}

fn row(line: usize, text: &str) -> Result<ProfileRow, Error> {
    let (fields, why) = match text.find('#') {
        Some(at) => (&text[..at], Some(text[at + 1..].trim())),
        None => (text, None),
    };
    let mut words = Tokens { line, rest: Some(fields.trim_end()), column: 1 };
    let kind = words.expect("the policy huge or eager", |word| {
        [Kind::Huge, Kind::Eager].into_iter().find(|kind| kind.name() == word)
    })?;
    let section = words.expect("the section code, data, heap or mmap", |word| {
        Section::ALL.into_iter().find(|section| section.name() == word)
    })?;
    let benefit = words.expect(NUMBER, number)?;
    let mut constraints = Vec::new();
    while let Some((column, word)) = words.next() {
        if word == "site" {
            words.expect("the comparator =", |word| (word == "=").then_some(()))?;
            let site = words.expect("a site such as libc.so.6+0x9f2e1", |word| {
                let (file, offset) = word.rsplit_once('+')?;
                let told = !file.is_empty() && offset.starts_with("0x") && number(offset).is_some();
                told.then(|| word.to_owned())
            })?;
            constraints.push(Constraint::Site(site));
            continue;
        }
        let Some(quantity) = Quantity::ALL.into_iter().find(|known| known.name() == word) else {
            let expected = "a quantity: section_off, addr, len, prot, flags, fd, off or site";
            return Err(words.wrong(column, expected, Some(word)));
        };
        let comparator = words.expect("a comparator: =, > or <", |word| {
            Comparator::ALL.into_iter().find(|known| known.name() == word)
        })?;
        constraints.push(Constraint::Number(quantity, comparator, words.expect(NUMBER, number)?));
    }
    let why = why.filter(|why| !why.is_empty()).map(str::to_owned);
    Ok(ProfileRow { kind, section, benefit, constraints, why })
}

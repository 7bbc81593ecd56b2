//! Quantities with their unit, read from and shown to people.
//!
//! Sizes are IEC: `2M` is 2 MiB, and prints as `2.0 MiB`. Times read `100ms`, `1.5s`, `2m`.
//! Always true: what `Display` prints parses back to within the precision that it printed.

use std::fmt;
use std::str::FromStr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::error::{Error, Kind};

/// A number of bytes.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct Bytes(pub u64);

/// A number of nanoseconds: a duration, or a moment of the clock that a recording names.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct Nanos(pub u64);

/// The number of a process, or of one of its threads (`pid_t`).
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(transparent)]
#[repr(transparent)]
pub struct Pid(pub u32);

/// The number of a virtual page: its address divided by the bytes of a page.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct Vpn(pub u64);

/// A block of the buddy allocator has 2 to the power of its order base pages.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct Order(pub u8);

/// Pages side by side: the address of the first, and the first address after the last.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PageRange {
    /// The first address.
    pub start: u64,
    /// The first address after it.
    pub end: u64,
}

impl PageRange {
    /// From the start of a range of addresses to its end; of no page where that is not above it.
    pub const fn new(range: std::ops::Range<u64>) -> Self {
        Self { start: range.start, end: range.end }
    }

    /// All that there may be.
    pub const ALL: Self = Self { start: 0, end: u64::MAX };

    /// So many bytes from an address on, up to the last address there is.
    pub const fn of_length(start: u64, Bytes(length): Bytes) -> Self {
        Self { start, end: start.saturating_add(length) }
    }

    /// Those of the huge page (2 MiB) that begins at an address.
    pub const fn of_huge(start: u64) -> Self {
        Self::of_length(start, Bytes(crate::page::HUGE))
    }

    /// Bytes.
    pub const fn bytes(self) -> u64 {
        self.end.saturating_sub(self.start)
    }

    /// Whether it is of no page.
    pub const fn is_empty(self) -> bool {
        self.end <= self.start
    }

    /// The numbers of its pages (virtual page numbers), where a page has `size` bytes.
    pub const fn numbers(self, size: u64) -> std::ops::Range<u64> {
        self.start / size..self.end / size
    }

    /// What of it lies in another.
    pub fn within(self, other: Self) -> Self {
        Self { start: self.start.max(other.start), end: self.end.min(other.end) }
    }
}

impl Pid {
    /// This process.
    pub fn own() -> Self {
        Self(std::process::id())
    }

    /// The one that a recording tells of by this number; the greatest there is, for a number that no kernel gives.
    pub fn told(number: u64) -> Self {
        Self(u32::try_from(number).unwrap_or(u32::MAX))
    }
}

impl From<Pid> for i64 {
    fn from(pid: Pid) -> Self {
        Self::from(pid.0)
    }
}

impl From<Pid> for u64 {
    fn from(pid: Pid) -> Self {
        Self::from(pid.0)
    }
}

impl Vpn {
    /// That of the page of `size` bytes in which an address lies.
    pub const fn of(address: u64, size: u64) -> Self {
        Self(address / size)
    }

    /// Its first address; the greatest there is, of a page beyond that.
    pub const fn address(self, size: u64) -> u64 {
        self.0.saturating_mul(size)
    }
}

impl Order {
    /// Base pages of a block; the greatest number there is, of an order that no kernel has.
    pub const fn pages(self) -> u64 {
        if self.0 < u64::BITS as u8 { 1 << self.0 } else { u64::MAX }
    }

    /// The first orders, so many of them: 0, 1, 2 and so on.
    pub fn first(count: usize) -> impl Iterator<Item = Self> + Clone {
        (0..=u8::MAX).take(count).map(Self)
    }

    /// Where it stands in a list of orders, from 0 on.
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

/// A number with a name is written and read as the number.
macro_rules! as_number {
    ($($name:ident),*) => {$(
        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }

        impl FromStr for $name {
            type Err = std::num::ParseIntError;

            fn from_str(text: &str) -> Result<Self, Self::Err> {
                text.parse().map(Self)
            }
        }
    )*};
}
as_number!(Pid, Order);

/// Whether sizes print as plain numbers.
static PLAIN: AtomicBool = AtomicBool::new(false);

impl Bytes {
    /// From here on sizes print as numbers of bytes, without a unit, in this process.
    pub fn print_plain() {
        PLAIN.store(true, Ordering::Relaxed);
    }

    /// Whether they do.
    pub fn prints_plain() -> bool {
        PLAIN.load(Ordering::Relaxed)
    }

    /// As it stands in a sentence, without the spaces that line columns up.
    pub fn plain(self) -> String {
        self.to_string().trim().to_owned()
    }

    /// The same in MiB, for charts.
    pub fn mib(self) -> f64 {
        self.0 as f64 / (1 << 20) as f64
    }
}

impl From<Duration> for Nanos {
    /// The greatest number that fits, for one that is longer.
    fn from(duration: Duration) -> Self {
        Self(u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX))
    }
}

impl Nanos {
    /// As it stands in a sentence, without the spaces that line columns up.
    pub fn plain(self) -> String {
        self.to_string().trim().to_owned()
    }

    /// The same in seconds, for charts.
    pub fn seconds(self) -> f64 {
        self.0 as f64 / 1e9
    }

    /// From then to now; zero if `earlier` is the later one.
    pub fn since(self, earlier: Self) -> Self {
        Self(self.0.saturating_sub(earlier.0))
    }
}

impl From<Nanos> for u64 {
    fn from(nanos: Nanos) -> Self {
        nanos.0
    }
}

impl From<Nanos> for std::time::Duration {
    fn from(nanos: Nanos) -> Self {
        Self::from_nanos(nanos.0)
    }
}

/// Units of sizes, smallest first: what is printed, and the letter that is read.
const SIZES: [(&str, char, f64); 7] = [
    ("B  ", 'b', 1.0),
    ("KiB", 'k', 1024.0),
    ("MiB", 'm', 1048576.0),
    ("GiB", 'g', 1073741824.0),
    ("TiB", 't', 1099511627776.0),
    ("PiB", 'p', 1125899906842624.0),
    ("EiB", 'e', 1152921504606846976.0),
];

/// A number of things in words: `1 sample`, `2 samples`.
pub fn counted(number: u64, one: &str, more: &str) -> String {
    format!("{number} {}", if number == 1 { one } else { more })
}

/// Ten characters wide, so that columns of sizes line up: ` 176.0 MiB`.
impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(bytes) = *self;
        if Self::prints_plain() {
            return write!(f, "{bytes:>10}");
        }
        if bytes < 1024 {
            return write!(f, "{bytes:>6} B  ");
        }
        // The next unit from where rounding would print 1024.0.
        let (name, _, unit) = SIZES
            .iter()
            .skip(1)
            .find(|(_, _, unit)| bytes as f64 / unit < 1023.95)
            .unwrap_or(&SIZES[SIZES.len() - 1]);
        write!(f, "{:>6.1} {name}", bytes as f64 / unit)
    }
}

/// Nine characters wide: `   1.5 ms`.
impl fmt::Display for Nanos {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(nanos) = *self;
        let (name, unit) = match nanos {
            0..1_000 => return write!(f, "{nanos:>6} ns"),
            1_000..999_950 => ("us", 1e3),
            999_950..999_950_000 => ("ms", 1e6),
            _ => ("s ", 1e9),
        };
        write!(f, "{:>6.1} {name}", nanos as f64 / unit)
    }
}

impl FromStr for Bytes {
    type Err = Error;

    /// Reads `4096`, `4K`, `4KiB`, `1.5 MiB`; letters in either case, always powers of 1024.
    fn from_str(text: &str) -> Result<Self, Error> {
        let expected = "expected a size such as 4096, 4K, 2M or 1.5GiB";
        let (number, suffix) = split(text);
        let suffix = suffix.to_ascii_lowercase();
        let factor = match suffix.as_str() {
            "" | "b" => Some(1.0),
            _ => {
                let unit = |(_, letter, factor): &(_, char, f64)| {
                    let rest = suffix.strip_prefix(*letter)?;
                    matches!(rest, "" | "b" | "ib").then_some(*factor)
                };
                SIZES.iter().skip(1).find_map(unit)
            }
        };
        whole(number, factor).map(Self).ok_or_else(|| invalid(text, expected))
    }
}

impl FromStr for Nanos {
    type Err = Error;

    /// Reads `250us`, `100ms`, `1.5s`, `2m`, `1h`, and several of them as in `1m30s`; a bare number is refused,
    /// for nobody could tell its unit.
    fn from_str(text: &str) -> Result<Self, Error> {
        let expected = "expected a time such as 250us, 100ms, 1.5s, 2m, 1h or 1m30s";
        let part = |text: &str| {
            let (number, suffix) = split(text);
            let factor = match suffix {
                "ns" => Some(1.0),
                "us" | "µs" => Some(1e3),
                "ms" => Some(1e6),
                "s" => Some(1e9),
                "m" | "min" => Some(60e9),
                "h" => Some(3600e9),
                _ => None,
            };
            whole(number, factor)
        };
        let mut sum = Some(0_u64);
        let mut rest = text.trim();
        loop {
            // A number and its unit, up to where the next number begins.
            let unit = rest.find(char::is_alphabetic).unwrap_or(rest.len());
            let next = rest[unit..].find(|c: char| c.is_ascii_digit());
            let (first, others) = rest.split_at(next.map_or(rest.len(), |next| unit + next));
            sum = sum.and_then(|sum| sum.checked_add(part(first)?));
            rest = others;
            if rest.is_empty() {
                return sum.map(Self).ok_or_else(|| invalid(text, expected));
            }
        }
    }
}

fn invalid(text: &str, expected: &str) -> Error {
    Error::new(Kind::Unit, format_args!("{text:?}: {expected}"))
}

/// The number at the start of `text` and the unit after it.
fn split(text: &str) -> (&str, &str) {
    let text = text.trim();
    let end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    (&text[..end], text[end..].trim())
}

/// `number` times `factor`, rounded; `None` if it is no number or does not fit.
fn whole(number: &str, factor: Option<f64>) -> Option<u64> {
    let factor = factor?;
    // Whole numbers are exact up to the limit of the type.
    if let Ok(exact) = number.parse::<u64>() {
        return exact.checked_mul(factor as u64);
    }
    let value = (number.parse::<f64>().ok()? * factor).round();
    (value >= 0.0 && value < u64::MAX as f64).then_some(value as u64)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn numbers_with_a_name_are_written_and_read_as_plain_ones() {
        let plain = |value: serde_json::Value| value.to_string();
        let (pid, page, order) = (Pid(17), Vpn::of(0x7fff_1234, 4096), Order(9));
        assert_eq!((pid.to_string(), order.to_string()), ("17".into(), "9".into()));
        assert_eq!(plain(serde_json::json!([pid, page, order])), "[17,524273,9]");
        assert_eq!(("17".parse(), "9".parse()), (Ok(pid), Ok(order)));
        assert!("-1".parse::<Pid>().is_err() && "300".parse::<Order>().is_err());
        assert_eq!((page.address(4096), Vpn(u64::MAX).address(2)), (0x7fff_1000, u64::MAX));
        assert_eq!((order.pages(), Order(64).pages()), (512, u64::MAX));
        assert!(Order::first(2).eq([Order(0), Order(1)]) && Order::first(1000).count() == 256);
    }

    #[test]
    fn one_thing_is_one() {
        let words = [0, 1, 2].map(|number| counted(number, "access", "accesses"));
        assert_eq!(words, ["0 accesses", "1 access", "2 accesses"]);
    }

    #[test]
    fn sizes_are_read_as_people_write_them() {
        for (text, bytes) in [
            ("0", 0),
            ("4096", 4096),
            ("4K", 4096),
            ("4k", 4096),
            ("2M", 2 << 20),
            ("2MB", 2 << 20),
            ("2MiB", 2 << 20),
            (" 1.5 GiB ", 3 << 29),
            ("17 B", 17),
            ("18446744073709551615", u64::MAX),
        ] {
            assert_eq!(text.parse::<Bytes>().unwrap(), Bytes(bytes), "{text}");
        }
        for text in
            ["", "M", "-1", "4X", "2MM", "1e3", "1.2.3", "99999999999E", "4bb", "4bib", "ten"]
        {
            let error = text.parse::<Bytes>().unwrap_err();
            assert_eq!(error.kind(), Kind::Unit, "{text}");
            assert!(error.to_string().contains("expected a size"), "{error}");
        }
    }

    #[test]
    fn times_are_read_as_people_write_them() {
        for (text, nanos) in [
            ("7ns", 7),
            ("250us", 250_000),
            ("100ms", 100_000_000),
            ("1.5s", 1_500_000_000),
            ("2m", 120_000_000_000),
            ("1h", 3_600_000_000_000),
            ("1m30s", 90_000_000_000),
            ("1h 2m 3.5s", 3_723_500_000_000),
        ] {
            assert_eq!(text.parse::<Nanos>().unwrap(), Nanos(nanos), "{text}");
        }
        for text in
            ["", "100", "ms", "-1s", "1 day", "1e9s", "1m30", "30s m", "1s,2s", "3000000h3000000h"]
        {
            assert!(text.parse::<Nanos>().is_err(), "{text}");
        }
    }

    #[test]
    fn columns_of_sizes_and_times_line_up() {
        assert_eq!(Bytes(0).to_string(), "     0 B  ");
        assert_eq!(Bytes(1536).to_string(), "   1.5 KiB");
        assert_eq!(Bytes(176 << 20).to_string(), " 176.0 MiB");
        assert_eq!(Bytes((1 << 20) - 1).to_string(), "   1.0 MiB");
        assert_eq!(Nanos(999).to_string(), "   999 ns");
        assert_eq!(Nanos(1_500_000).to_string(), "   1.5 ms");
        assert_eq!(Nanos(999_999).to_string(), "   1.0 ms");
    }

    proptest! {
        #[test]
        fn sizes_print_ten_wide_and_read_back(bytes: u64) {
            let text = Bytes(bytes).to_string();
            prop_assert_eq!(text.chars().count(), 10);
            // The largest values round up to 16 EiB, which does not fit any more.
            prop_assume!(bytes < u64::MAX - (1 << 59));
            let read = text.parse::<Bytes>().unwrap().0;
            prop_assert!(read.abs_diff(bytes) as f64 <= bytes as f64 * 0.051, "{text}");
        }

        #[test]
        fn times_print_and_read_back(nanos in 0..1u64 << 50) {
            let text = Nanos(nanos).to_string();
            let read = text.parse::<Nanos>().unwrap().0;
            prop_assert!(read.abs_diff(nanos) as f64 <= nanos as f64 * 0.051, "{text}");
        }

        #[test]
        fn no_text_panics(text: String) {
            let _ = (text.parse::<Bytes>(), text.parse::<Nanos>());
        }
    }
}

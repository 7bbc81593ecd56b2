//! A profile made imprecise on purpose, to see what a wrong profile costs.
//!
//! The published evaluation asks how good a profile has to be (sections 5.5 and 5.6): one from another input of the
//! program, one average for a whole program (`flatten`), one number for all programs (`general`), the huge page part
//! alone (`huge-only`). The others (`shift`, `scale`, `noise`, `drop`, `shuffle`) are wrong in one way each, by a known
//! amount.
//!
//! Always true: the same seed gives the same profile; each change keeps the file's form and is told in the why of each
//! row that has one; rows that share conditions (the published profiles have each range once for heap and once for
//! mmap) are dropped and scrambled together.

use std::fmt;
use std::str::FromStr;

use pagemill_analysis::statistics::{Random, normal_quantile};
use pagemill_model::Bytes;
use pagemill_policy::huge::Section;
use pagemill_policy::huge::profile::{Constraint, Kind, Profile, ProfileRow, Quantity};

/// One way to be wrong.
#[derive(Clone, Debug, PartialEq)]
pub enum Perturbation {
    /// All addresses and section offsets are off by so many bytes.
    Shift(i64),
    /// All benefits are times this.
    Scale(f64),
    /// Each benefit is times a factor with this standard deviation of its logarithm.
    Noise(f64),
    /// This share of the ranges is missing.
    Drop(f64),
    /// The ranges have each other's benefits.
    Shuffle,
    /// One average a section and kind, without conditions.
    Flatten,
    /// One number for heap and mmap.
    General(u64),
    /// No eager rows.
    HugeOnly,
}

impl FromStr for Perturbation {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let expected = "expected shift=BYTES, scale=FACTOR, noise=DEVIATION, drop=SHARE, shuffle, flatten, \
                        general=BENEFIT or huge-only";
        let wrong = || format!("{text:?}: {expected}");
        let (name, value) = text.split_once('=').map_or((text, None), |(n, v)| (n, Some(v)));
        let number = |least: f64, most: f64| {
            let value: f64 = value?.parse().ok()?;
            (least..=most).contains(&value).then_some(value)
        };
        match (name, value) {
            ("shift", Some(value)) => {
                let (sign, size) = value.strip_prefix('-').map_or((1, value), |size| (-1, size));
                let Bytes(size) = size.parse().map_err(|_| wrong())?;
                i64::try_from(size).map(|size| Self::Shift(sign * size)).map_err(|_| wrong())
            }
            ("scale", Some(_)) => number(0.0, 1e9).map(Self::Scale).ok_or_else(wrong),
            ("noise", Some(_)) => number(0.0, 100.0).map(Self::Noise).ok_or_else(wrong),
            ("drop", Some(_)) => number(0.0, 1.0).map(Self::Drop).ok_or_else(wrong),
            ("general", Some(value)) => value.parse().map(Self::General).map_err(|_| wrong()),
            ("shuffle", None) => Ok(Self::Shuffle),
            ("flatten", None) => Ok(Self::Flatten),
            ("huge-only", None) => Ok(Self::HugeOnly),
            _ => Err(wrong()),
        }
    }
}

impl fmt::Display for Perturbation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Shift(bytes) => write!(f, "shift={bytes}"),
            Self::Scale(factor) => write!(f, "scale={factor}"),
            Self::Noise(deviation) => write!(f, "noise={deviation}"),
            Self::Drop(share) => write!(f, "drop={share}"),
            Self::Shuffle => f.write_str("shuffle"),
            Self::Flatten => f.write_str("flatten"),
            Self::General(benefit) => write!(f, "general={benefit}"),
            Self::HugeOnly => f.write_str("huge-only"),
        }
    }
}

/// A number in (0, 1).
fn unit(random: &mut Random) -> f64 {
    (random.index(1 << 30) as f64 + 0.5) / f64::from(1 << 30)
}

/// Rows that are one range: neighbours with the same kind, benefit and conditions.
fn ranges(rows: &[ProfileRow]) -> Vec<Vec<usize>> {
    let mut ranges: Vec<Vec<usize>> = Vec::new();
    for (at, row) in rows.iter().enumerate() {
        let same = |other: &ProfileRow| {
            (other.kind, other.benefit) == (row.kind, row.benefit)
                && other.constraints == row.constraints
        };
        match ranges.last_mut() {
            Some(range) if same(&rows[range[0]]) => range.push(at),
            _ => ranges.push(vec![at]),
        }
    }
    ranges
}

fn times(benefit: u64, factor: f64) -> u64 {
    // The cast saturates.
    (benefit as f64 * factor).round() as u64
}

impl Perturbation {
    /// The profile, made wrong.
    pub fn apply(&self, profile: &Profile, seed: u64) -> Profile {
        let mut random = Random::new(seed);
        let mut rows = profile.rows.clone();
        match self {
            Self::Shift(by) => {
                let places = rows.iter_mut().flat_map(|row| &mut row.constraints);
                for constraint in places {
                    if let Constraint::Number(Quantity::Addr | Quantity::SectionOff, _, value) =
                        constraint
                    {
                        *value = value.saturating_add_signed(*by);
                    }
                }
            }
            Self::Scale(factor) => {
                rows.iter_mut().for_each(|row| row.benefit = times(row.benefit, *factor));
            }
            Self::Noise(deviation) => {
                for range in ranges(&rows) {
                    let factor = (deviation * normal_quantile(unit(&mut random))).exp();
                    for at in range {
                        rows[at].benefit = times(rows[at].benefit, factor);
                    }
                }
            }
            Self::Drop(share) => {
                let kept = ranges(&rows).into_iter().filter(|_| unit(&mut random) >= *share);
                rows = kept.flatten().map(|at| profile.rows[at].clone()).collect();
            }
            Self::Shuffle => {
                for kind in [Kind::Huge, Kind::Eager] {
                    let mut of_kind = ranges(&rows);
                    of_kind.retain(|range| rows[range[0]].kind == kind);
                    let mut benefits: Vec<u64> =
                        of_kind.iter().map(|range| rows[range[0]].benefit).collect();
                    random.shuffle(&mut benefits);
                    for (range, benefit) in of_kind.into_iter().zip(benefits) {
                        range.into_iter().for_each(|at| rows[at].benefit = benefit);
                    }
                }
            }
            Self::Flatten => rows = flattened(&rows),
            Self::General(benefit) => {
                rows =
                    [Section::Heap, Section::Mmap].map(|s| plain(Kind::Huge, s, *benefit)).into();
            }
            Self::HugeOnly => rows.retain(|row| row.kind == Kind::Huge),
        }
        for row in &mut rows {
            if let Some(why) = &mut row.why {
                *why += &format!("; then made wrong: {self}");
            }
        }
        Profile { unit: profile.unit, rows }
    }
}

fn plain(kind: Kind, section: Section, benefit: u64) -> ProfileRow {
    ProfileRow { kind, section, benefit, constraints: Vec::new(), why: None }
}

fn flattened(rows: &[ProfileRow]) -> Vec<ProfileRow> {
    let mut flat = Vec::new();
    for kind in [Kind::Huge, Kind::Eager] {
        for section in Section::ALL {
            let of: Vec<u64> = rows
                .iter()
                .filter(|row| (row.kind, row.section) == (kind, section))
                .map(|row| row.benefit)
                .collect();
            if !of.is_empty() {
                let sum: u128 = of.iter().map(|benefit| u128::from(*benefit)).sum();
                let mean = u64::try_from(sum / of.len() as u128).unwrap_or(u64::MAX);
                flat.push(plain(kind, section, mean));
            }
        }
    }
    flat
}

#[cfg(test)]
mod tests {
    use super::*;

    fn profile() -> Profile {
        let ranges = (0..40u64).map(|i| {
            let (from, to) = (i << 22, (i + 1) << 22);
            let range = |section| {
                format!("huge,{section},{},addr,>,{from:#x},addr,<,{to:#x}\n", 1000 + i * 10)
            };
            range("heap") + &range("mmap")
        });
        let text: String =
            ranges.chain(["eager,heap,1,addr,>,0x1000,addr,<,0x2000\n".into()]).collect();
        Profile::parse(&text).unwrap()
    }

    fn wrong(text: &str) -> Profile {
        text.parse::<Perturbation>().unwrap().apply(&profile(), 7)
    }

    #[test]
    fn each_way_is_wrong_in_its_way_only() {
        let (was, shifted) = (profile(), wrong("shift=2M"));
        assert_eq!(shifted.rows[2].benefit, was.rows[2].benefit);
        assert!(
            shifted.to_string().starts_with("huge,heap,1000,addr,>,0x200000,addr,<,0x600000\n")
        );
        assert_eq!(wrong("shift=-2M").rows[0].constraints[0], was.rows[0].constraints[0]);
        assert_eq!(wrong("scale=0.5").rows[0].benefit, 500);
        assert_eq!(wrong("huge-only").rows.len(), 80);
        assert_eq!(
            wrong("general=41534456").to_string(),
            "huge,heap,41534456\nhuge,mmap,41534456\n"
        );
        assert_eq!(wrong("flatten").to_string(), "huge,heap,1195\nhuge,mmap,1195\neager,heap,1\n");
        let dropped = wrong("drop=0.5").rows.len();
        assert!((30..=60).contains(&dropped), "{dropped} of 81");
        assert_eq!(wrong("drop=0"), was);
        assert_eq!(wrong("drop=1").rows, []);
    }

    #[test]
    fn rows_of_one_range_stay_together() {
        for way in ["noise=1", "shuffle", "drop=0.3"] {
            let rows = wrong(way).rows;
            for pair in rows.chunks(2).filter(|pair| pair[0].kind == Kind::Huge) {
                assert_eq!(pair[0].constraints, pair[1].constraints, "{way}");
                assert_eq!(pair[0].benefit, pair[1].benefit, "{way}");
            }
        }
        let sorted = |profile: Profile| {
            let mut all: Vec<u64> = profile.rows.iter().map(|row| row.benefit).collect();
            all.sort_unstable();
            all
        };
        assert_eq!(sorted(wrong("shuffle")), sorted(profile()));
        assert_ne!(wrong("shuffle"), profile());
    }

    /// Rows of any kind, as the original and this have them: absolute addresses, offsets, lengths, none.
    fn any_profile(random: &mut Random) -> Profile {
        let row = |random: &mut Random| {
            let kind = ["huge", "eager"][random.index(2)];
            let section = ["code", "data", "heap", "mmap"][random.index(4)];
            let from = (random.index(1 << 20) as u64) << 12;
            let to = from + (1 + random.index(1 << 12) as u64) * 4096;
            let conditions = match random.index(4) {
                0 => String::new(),
                1 => format!(",addr,>,{from:#x},addr,<,{to:#x}"),
                2 => format!(",section_off,>,{from:#x},section_off,<,{to:#x}"),
                _ => format!(",len,>,{from:#x},flags,=,34"),
            };
            format!("{kind},{section},{}{conditions}\n", random.index(1 << 40))
        };
        let rows: String = (0..random.index(30)).map(|_| row(random)).collect();
        Profile::parse(&rows).unwrap()
    }

    #[test]
    fn of_any_profile_the_form_is_kept_and_what_is_done_can_be_told() {
        let ways = "shift=64M scale=0.3 noise=1 drop=0.4 shuffle flatten general=5 huge-only";
        for seed in 0..300 {
            let was = any_profile(&mut Random::new(seed));
            let made = |way: &str| way.parse::<Perturbation>().unwrap().apply(&was, seed);
            for way in ways.split(' ') {
                let profile = made(way);
                assert_eq!(Profile::parse(&profile.to_string()).unwrap(), profile, "{way}, {seed}");
                assert_eq!(profile, made(way), "{way}, {seed}");
            }
            assert_eq!(Perturbation::Shift(-(64 << 20)).apply(&made("shift=64M"), seed), was);
            assert_eq!(
                (made("scale=1"), made("noise=0"), made("drop=0")),
                (was.clone(), was.clone(), was.clone())
            );
            assert!(made("drop=0.4").rows.iter().all(|row| was.rows.contains(row)));
            let places = |profile: &Profile| {
                profile
                    .rows
                    .iter()
                    .map(|row| (row.kind, row.section, row.constraints.clone()))
                    .collect::<Vec<_>>()
            };
            for way in ["scale=0.3", "noise=1", "shuffle"] {
                assert_eq!(places(&made(way)), places(&was), "{way}, {seed}");
            }
        }
    }

    #[test]
    fn a_why_tells_what_was_done_to_its_row() {
        let was = Profile::parse(
            "# unit: ns\nhuge,heap,70,section_off,<,0x200000  # faults 70 > helper 3\n",
        )
        .unwrap();
        let made = |way: &str| way.parse::<Perturbation>().unwrap().apply(&was, 1).to_string();
        assert!(made("scale=2").ends_with(
            "huge,heap,140,section_off,<,0x200000  # faults 70 > helper 3; then made \
             wrong: scale=2\n"
        ));
        assert_eq!(made("flatten"), "# unit: ns\nhuge,heap,70\n", "an average has none");
    }

    #[test]
    fn a_seed_is_a_profile() {
        let noise = Perturbation::Noise(0.5);
        assert_eq!(noise.apply(&profile(), 3), noise.apply(&profile(), 3));
        assert_ne!(noise.apply(&profile(), 3), noise.apply(&profile(), 4));
    }

    #[test]
    fn what_is_no_perturbation_is_told_what_is_expected() {
        for text in
            ["", "shift", "shift=x", "scale=-1", "drop=2", "flatten=1", "general=1.5", "noise=nan"]
        {
            let error = text.parse::<Perturbation>().unwrap_err();
            assert!(error.contains("expected shift=BYTES"), "{error}");
        }
    }
}

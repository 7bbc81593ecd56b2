use proptest::prelude::*;

use super::*;

/// Rows of the published profiles, in their own words.
const PUBLISHED: &str = "\
huge,heap,243632025,addr,>,0x0,addr,<,0x7fcc76400000
huge,mmap,243632025,addr,>,0x0,addr,<,0x7fcc76400000
eager,heap,1,addr,>,0x601000,addr,<,0x602000
huge,heap,41534456
";

#[test]
fn a_published_profile_is_printed_byte_for_byte() {
    let profile = Profile::parse(PUBLISHED).unwrap();
    assert_eq!(profile.to_string(), PUBLISHED);
    assert_eq!(profile.original(), Ok(()));
    assert_eq!(profile.rows.len(), 4);
    assert_eq!(profile.rows[3].constraints, []);
}

#[test]
fn units_reasons_and_sites_are_ours() {
    let text = "# unit: ns\nhuge,mmap,51000,site,=,libc.so.6+0x9f2e1,len,>,0x1fffff  # dense: 511 of 512\n";
    let profile = Profile::parse(text).unwrap();
    assert_eq!(profile.to_string(), text);
    assert_eq!(profile.rows[0].why.as_deref(), Some("dense: 511 of 512"));
    assert!(profile.original().unwrap_err().contains("cycles"));
    assert_eq!(profile.to_original(2000).rows, []);
    let plain = Profile::parse("# unit: ns\nhuge,heap,51000  # because\n").unwrap();
    assert_eq!(plain.to_original(2000).to_string(), "huge,heap,102000\n");
}

#[test]
fn a_wrong_word_is_named_with_line_and_column_and_what_was_expected() {
    for (text, place, expected) in [
        ("huge,stack,5\n", "1:6", "the section code, data, heap or mmap, found \"stack\""),
        ("huge,heap,5\ntiny,heap,5\n", "2:1", "the policy huge or eager, found \"tiny\""),
        ("huge,heap,5k", "1:11", "a number such as 4096 or 0x1000, found \"5k\""),
        ("huge,heap,-5", "1:11", "a number"),
        ("huge,heap,010", "1:11", "a number"),
        ("huge,heap,18446744073709551616", "1:11", "a number"),
        ("huge,heap", "1:11", "found nothing"),
        ("huge,heap,1,size,=,3", "1:13", "a quantity: section_off"),
        ("huge,heap,1,len,!,3", "1:17", "a comparator: =, > or <, found \"!\""),
        ("huge,heap,1,len,>,0xg", "1:19", "a number"),
        ("huge,heap,1,len,>", "1:19", "found nothing"),
        ("huge,heap,1,", "1:13", "found nothing"),
        ("# unit: hours\n", "1:9", "the unit ns or cycles"),
    ] {
        let error = Profile::parse(text).unwrap_err().to_string();
        assert!(error.starts_with(&format!("{place}: ")), "{text:?}: {error}");
        assert!(error.contains(expected), "{text:?}: {error}");
    }
}

fn mapping(section: Section, start: u64, pages: u64) -> Mapping {
    Mapping { start, end: start + pages * 4096, section, base: start, ..Mapping::default() }
}

#[test]
fn the_offset_of_the_mmap_section_counts_down_from_its_top() {
    let profile = Profile::parse("huge,mmap,7,section_off,<,0x2000\n").unwrap();
    let mapping = Mapping { base: 0x14000, ..mapping(Section::Mmap, 0x10000, 4) };
    let range = Range { start: 0x12000, end: 0x14000, benefit: 7, row: 0 };
    assert_eq!(profile.ranges(Kind::Huge, &mapping), [range]);
}

#[test]
fn a_region_without_a_row_is_absent_not_zero() {
    let profile =
        Profile::parse("huge,heap,7,addr,<,0x200000\neager,heap,3,addr,>,0x3ff000").unwrap();
    let heap = mapping(Section::Heap, 0, 1024);
    assert_eq!(profile.benefit(Kind::Huge, &heap, 0), crate::huge::Figure::Modelled(7));
    assert_eq!(profile.benefit(Kind::Huge, &heap, 0x20_0000), crate::huge::Figure::Absent);
    assert_eq!(profile.benefit(Kind::Eager, &heap, 0x20_0000), crate::huge::Figure::Modelled(3));
    assert_eq!(profile.benefit(Kind::Huge, &heap, 0x40_0000), crate::huge::Figure::Absent);
}

fn constraint() -> impl Strategy<Value = Constraint> {
    let quantity = prop::sample::select(Quantity::ALL.to_vec());
    let comparator = prop::sample::select(Comparator::ALL.to_vec());
    let value = prop_oneof![0..40u64, (0..40u64).prop_map(|page| page * 4096), any::<u64>()];
    prop_oneof![
        8 => (quantity, comparator, value).prop_map(|(q, c, v)| Constraint::Number(q, c, v)),
        1 => prop::sample::select(vec!["a+0x1", "b+0x2"]).prop_map(|site| Constraint::Site(site.to_owned())),
    ]
}

fn rows() -> impl Strategy<Value = Vec<ProfileRow>> {
    let row = (
        prop::sample::select(vec![Kind::Huge, Kind::Eager]),
        prop::sample::select(Section::ALL.to_vec()),
        any::<u64>(),
        prop::collection::vec(constraint(), 0..4),
        prop::option::of("[a-z][a-z0-9 :,=<>]{0,20}[a-z]"),
    );
    let row = row.prop_map(|(kind, section, benefit, constraints, why)| ProfileRow {
        kind,
        section,
        benefit,
        constraints,
        why,
    });
    prop::collection::vec(row, 0..8)
}

fn mappings() -> impl Strategy<Value = Mapping> {
    (
        0..20u64,
        1..20u64,
        prop::sample::select(Section::ALL.to_vec()),
        0..45u64,
        (0..3u64, 0..3u64, 0..3u64, 0..3u64),
        prop::option::of(prop::sample::select(vec!["a+0x1", "b+0x2"])),
    )
        .prop_map(|(start, pages, section, base, (prot, flags, fd, off), site)| Mapping {
            start: start * 4096,
            end: (start + pages) * 4096,
            section,
            base: base * 4096,
            prot,
            flags,
            fd,
            off,
            site: site.map(str::to_owned),
        })
}

/// The row that decides for the page at `address`, asked page by page and constraint by constraint.
fn naive(profile: &Profile, kind: Kind, mapping: &Mapping, address: u64) -> Option<usize> {
    let holds = |constraint: &Constraint| {
        let (quantity, comparator, value) = match constraint {
            Constraint::Site(site) => return mapping.site.as_deref() == Some(site.as_str()),
            Constraint::Number(quantity, comparator, value) => (quantity, comparator, *value),
        };
        // Where a bound lies, as an address; a page is in from the first whole page at or after it.
        let bound = match quantity {
            Quantity::Addr => Some((value, false)),
            Quantity::SectionOff if mapping.section == Section::Mmap => {
                Some((mapping.base.saturating_sub(value), true))
            }
            Quantity::SectionOff => Some((mapping.base.saturating_add(value), false)),
            _ => None,
        };
        if let Some((bound, flipped)) = bound {
            return match (comparator, flipped) {
                (Comparator::Equal, _) => bound >= address && bound - address < 4096,
                (Comparator::Greater, false) | (Comparator::Less, true) => address >= bound,
                (Comparator::Less, false) | (Comparator::Greater, true) => address < bound,
            };
        }
        let there = match quantity {
            Quantity::Len => mapping.end - mapping.start,
            Quantity::Prot => mapping.prot,
            Quantity::Flags => mapping.flags,
            Quantity::Fd => mapping.fd,
            _ => mapping.off,
        };
        match comparator {
            Comparator::Equal => there == value,
            Comparator::Greater => there > value,
            Comparator::Less => there < value,
        }
    };
    profile.rows.iter().position(|row| {
        row.kind == kind && row.section == mapping.section && row.constraints.iter().all(holds)
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    #[test]
    fn what_is_printed_parses_to_the_same_profile(rows in rows(), nanos: bool) {
        let profile = Profile { unit: if nanos { Unit::Nanos } else { Unit::Cycles }, rows };
        prop_assert_eq!(Profile::parse(&profile.to_string()).unwrap(), profile);
    }

    #[test]
    fn ranges_are_what_every_page_says_by_itself(rows in rows(), mapping in mappings(), huge: bool) {
        let profile = Profile { unit: Unit::Cycles, rows };
        let kind = if huge { Kind::Huge } else { Kind::Eager };
        let ranges = profile.ranges(kind, &mapping);
        for pair in ranges.windows(2) {
            prop_assert!(pair[0].end <= pair[1].start);
        }
        prop_assert!(ranges.iter().all(|r| mapping.start <= r.start && r.start < r.end && r.end <= mapping.end));
        for address in (mapping.start..mapping.end).step_by(4096) {
            let found = ranges.iter().find(|range| range.start <= address && address < range.end);
            let expected = naive(&profile, kind, &mapping, address);
            prop_assert_eq!(found.map(|range| range.row), expected, "{:#x}", address);
            if let Some(range) = found {
                prop_assert_eq!(range.benefit, profile.rows[range.row].benefit);
            }
        }
    }

    #[test]
    fn no_text_panics(text in "([a-z0-9,x#=<> ]|huge|eager|heap|addr|\n|é){0,60}") {
        if let Err(error) = Profile::parse(&text) {
            prop_assert!(error.line <= text.lines().count());
        }
    }
}

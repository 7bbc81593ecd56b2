//! Who holds a recorded program's memory: the code that asked for what is resident near the end, or what it is.
//!
//! Near the end, and used last: as of [`pagemill_analysis::heat::ObjectHeat::last_touched`].
//!
//! Always true: an object of the recording is in at most one row; no more of a row is unused than is resident.

use pagemill_analysis::heat::{HeatView, ObjectHeat};
use pagemill_model::sums::sum;
use pagemill_report::draw::text;
use serde_json::{Value, json};

use crate::observation::bytes;

/// Rows.
const MOST: usize = 5;
/// A part of all that is worth a row.
const PART: f64 = 0.01;

/// The largest objects, the largest first.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Holders {
    rows: Vec<Holder>,
    /// Bytes that all of the program's objects hold.
    all: u64,
    /// Of them, not used in the second half of the recording.
    unused: u64,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Holder {
    name: String,
    kind: String,
    /// Bytes that are resident near the end.
    resident: u64,
    /// Of them, not used in the second half of the recording.
    unused: u64,
}

impl Holders {
    /// Of a recording's accesses to pages of `page` bytes.
    pub fn of(heat: &HeatView, page: u64) -> Self {
        let half = heat.steps / 2;
        let holder = |object: &ObjectHeat| {
            let pages = |kept: &dyn Fn(u64) -> bool| {
                let kept = object.last_touched.iter().filter(|(step, _)| kept(*step));
                sum(kept.map(|(_, pages)| *pages)).saturating_mul(page)
            };
            Holder {
                name: object.name.clone(),
                kind: object.kind.clone(),
                resident: pages(&|_| true),
                unused: pages(&|step| step < half),
            }
        };
        let mut rows: Vec<Holder> = heat.objects.iter().map(holder).collect();
        let all = sum(rows.iter().map(|row| row.resident));
        let unused = sum(rows.iter().map(|row| row.unused));
        rows.retain(|row| row.resident as f64 > all as f64 * PART);
        rows.sort_by_key(|row| std::cmp::Reverse(row.resident));
        rows.truncate(MOST);
        Self { rows, all, unused }
    }

    /// How much of it is not used any more, in a sentence; nothing where nothing is known to be resident.
    pub fn conclusion(&self) -> Option<String> {
        let [unused, all] = [self.unused, self.all].map(|size| bytes(size as f64));
        let most = self.rows.iter().max_by_key(|row| row.unused)?;
        Some(match self.unused as f64 > self.all as f64 * PART {
            true => format!(
                "{unused} of the {all} that are resident near the end were not used in the second half, most of it {} \
                 ({})",
                bytes(most.unused as f64),
                most.name
            ),
            false => {
                format!("the {all} that are resident near the end were used in the second half")
            }
        })
    }

    /// As text, a table; nothing where nothing is known to be resident.
    pub fn text(&self) -> String {
        if self.rows.is_empty() {
            return String::new();
        }
        let header =
            ["resident", "not used in the second half", "what", "who asked for it, or its name"];
        let cells = |row: &Holder| {
            let [resident, unused] = [row.resident, row.unused].map(|size| bytes(size as f64));
            vec![resident, unused, row.kind.clone(), row.name.clone()]
        };
        let rows: Vec<Vec<String>> = self.rows.iter().map(cells).collect();
        format!(
            "\nwho holds the {} that are resident near the end\n{}",
            bytes(self.all as f64),
            text::table(&header, &rows)
        )
    }

    /// As JSON: an array, the largest first.
    pub fn json(&self) -> Value {
        let row = |row: &Holder| {
            json!({
                "name": row.name,
                "kind": row.kind,
                "resident_bytes": row.resident,
                "unused_bytes": row.unused,
            })
        };
        self.rows.iter().map(row).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn object(name: &str, last_touched: Vec<(u64, u64)>) -> ObjectHeat {
        let (name, kind) = (name.to_owned(), "allocation".to_owned());
        ObjectHeat { name, kind, last_touched, ..ObjectHeat::default() }
    }

    #[test]
    fn the_largest_come_first_and_what_is_little_has_no_row() {
        let objects = vec![
            object("main (a.c:3)", vec![(9, 10)]),
            object("fill (a.c:9)", vec![(1, 290), (5, 10)]),
            object("little", vec![(9, 1)]),
            object("gone", vec![]),
        ];
        let heat = HeatView { steps: 10, objects, ..HeatView::default() };
        let holders = Holders::of(&heat, 4096);
        let told = holders.json();
        assert_eq!(told.as_array().map(Vec::len), Some(2), "{told}");
        assert_eq!(told[0]["name"], "fill (a.c:9)");
        assert_eq!(told[0]["resident_bytes"], 300 * 4096);
        assert_eq!(told[0]["unused_bytes"], 290 * 4096);
        assert_eq!(told[1]["unused_bytes"], 0);
        let text = holders.text();
        assert!(text.contains("who holds the 1.2 MiB that are resident near the end"), "{text}");
        assert!(text.contains("fill (a.c:9)") && !text.contains("little"), "{text}");
        let sentence = holders.conclusion().unwrap_or_default();
        assert!(sentence.starts_with("1.1 MiB of the 1.2 MiB that are resident"), "{sentence}");
        assert!(sentence.ends_with("most of it 1.1 MiB (fill (a.c:9))"), "{sentence}");
        assert_eq!(Holders::of(&HeatView::default(), 4096).conclusion(), None);
        assert_eq!(Holders::of(&HeatView::default(), 4096).text(), "");
    }

    proptest::proptest! {
        #[test]
        fn an_object_is_in_one_row_at_most_and_no_more_of_it_is_unused_than_resident(
            objects in proptest::collection::vec(proptest::collection::vec((0_u64..20, 0_u64..99), 0..4), 0..12),
        ) {
            let objects = objects.into_iter().enumerate().map(|(at, last)| object(&at.to_string(), last));
            let heat = HeatView { steps: 20, objects: objects.collect(), ..HeatView::default() };
            let Holders { rows, all, .. } = Holders::of(&heat, 4096);
            let mut names: Vec<&str> = rows.iter().map(|row| row.name.as_str()).collect();
            names.sort_unstable();
            names.dedup();
            proptest::prop_assert_eq!(names.len(), rows.len());
            proptest::prop_assert!(rows.iter().all(|row| row.unused <= row.resident));
            proptest::prop_assert!(rows.iter().map(|row| row.resident).sum::<u64>() <= all);
        }
    }
}

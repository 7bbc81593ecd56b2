//! Free memory over time: looks at zones folded into the scores of each.
//!
//! A **look** is all rows of one moment. Always true: a point is a share of what was free at that
//! look, so it lies in [0, 1].

use std::collections::BTreeMap;

use pagemill_model::frag::FragSample;
use pagemill_model::{Bytes, Event, Fold, Nanos, Order};

use super::{Score, together, unusable};

use pagemill_model::sums::sum;

/// Zones with less than this share of the memory of all are not in the score of all.
const SMALL: f64 = 0.01;

/// What the looks add up to.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct FragView {
    /// Looks.
    pub looks: u64,
    /// The first and the last look: each zone with its free blocks.
    pub first: Vec<FragSample>,
    /// See `first`.
    pub last: Vec<FragSample>,
    /// Seconds since the first look, unusable index of order 9 of all large zones together.
    pub points: Vec<(f64, f64)>,
    /// Seconds since the first look, bytes hidden on the lists of the processors.
    pub hidden: Vec<(f64, f64)>,
}

impl FragView {
    /// The order of [`FragView::points`]: that of a 2 MiB page.
    pub const ORDER: usize = 9;

    /// The scores of the large zones of a look together, by order.
    pub fn scores(look: &[FragSample]) -> Vec<Score> {
        let all = sum(look.iter().filter_map(|zone| zone.managed).map(|bytes| bytes.0));
        let large = |zone: &&FragSample| {
            zone.managed.is_none_or(|Bytes(bytes)| bytes as f64 >= SMALL * all as f64)
        };
        let blocks = together(look.iter().filter(large).filter_map(|z| z.free_blocks.as_deref()));
        Order::first(blocks.len()).map(|order| unusable(&blocks, order)).collect()
    }
}

/// Folds looks at free memory into a [`FragView`].
#[derive(Clone, Debug, Default)]
pub struct FragFold(BTreeMap<Nanos, Vec<FragSample>>);

impl Fold for FragFold {
    type View = FragView;

    fn event(&mut self, event: &Event) {
        if let Event::Frag(sample) = event {
            self.0.entry(sample.time).or_default().push((**sample).clone());
        }
    }

    fn view(&self) -> FragView {
        let started = self.0.keys().next().copied().unwrap_or_default();
        let seconds = |time: &Nanos| time.since(started).seconds();
        let point = |(time, look): (&Nanos, &Vec<FragSample>)| {
            let score = FragView::scores(look).get(FragView::ORDER).copied()?;
            Some((seconds(time), score.value()))
        };
        let hidden = |(time, look): (&Nanos, &Vec<FragSample>)| {
            let bytes: Option<Vec<u64>> = look.iter().map(|zone| Some(zone.hidden?.0)).collect();
            Some((seconds(time), sum(bytes?) as f64))
        };
        FragView {
            looks: self.0.len() as u64,
            first: self.0.values().next().cloned().unwrap_or_default(),
            last: self.0.values().next_back().cloned().unwrap_or_default(),
            points: self.0.iter().filter_map(point).collect(),
            hidden: self.0.iter().filter_map(hidden).collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(time: u64, zone: &str, blocks: &[u64], managed: u64) -> Event {
        Event::Frag(Box::new(FragSample {
            time: Nanos(time),
            node: Some(0),
            zone: Some(zone.into()),
            free_blocks: Some(blocks.into()),
            hidden: Some(Bytes(4096)),
            managed: Some(Bytes(managed)),
        }))
    }

    #[test]
    fn a_look_is_all_zones_of_one_moment_and_small_ones_have_no_say() {
        let mut fold = FragFold::default();
        let large = [512, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0];
        let whole = [0, 0, 0, 0, 0, 0, 0, 0, 0, 2, 0];
        for event in [
            sample(1_000_000_000, "DMA", &[9; 11], 16 << 20),
            sample(1_000_000_000, "Normal", &large, 20 << 30),
            sample(3_000_000_000, "DMA", &[9; 11], 16 << 20),
            sample(3_000_000_000, "Normal", &whole, 20 << 30),
        ] {
            fold.event(&event);
        }
        let view = fold.view();
        assert_eq!((view.looks, view.first.len()), (2, 2));
        assert_eq!(view.points, [(0.0, 0.5), (2.0, 0.0)]);
        assert_eq!(view.hidden, [(0.0, 8192.0), (2.0, 8192.0)]);
        assert_eq!(FragView::scores(&view.first)[9], Score(500));
    }

    #[test]
    fn a_recording_without_looks_has_an_empty_view() {
        assert_eq!(FragFold::default().view(), FragView::default());
    }
}

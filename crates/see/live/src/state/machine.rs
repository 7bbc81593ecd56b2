//! The machine's free memory, and how much of it is in blocks too small for a huge page.

use pagemill_analysis::fragmentation::timeline::FragView;
use pagemill_model::frag::FragSample;
use pagemill_model::sums::sum;
use pagemill_model::{Event, Nanos};

use super::history::History;

/// The zones of the last look.
#[derive(Clone, Debug, Default)]
pub struct Machine {
    /// A look is all zones of one moment; this is the last one that is whole. Of a recording in the making not all of
    /// its rows come at once.
    look: Vec<FragSample>,
    /// What came so far of the one after it, as long as it has fewer zones.
    partial: Vec<FragSample>,
    at: Nanos,
    /// The unusable free space index for a huge page over time.
    pub unusable: History,
}

impl Machine {
    /// Takes in an event.
    pub fn event(&mut self, event: &Event) {
        let Event::Frag(sample) = event else { return };
        if sample.time != self.at {
            self.close();
            self.partial.clear();
            self.at = sample.time;
        }
        self.partial.push((**sample).clone());
        if self.partial.len() >= self.look.len() {
            self.look.clone_from(&self.partial);
        }
    }

    fn close(&mut self) {
        if let Some(index) = self.index() {
            self.unusable.add(self.at, index);
        }
    }

    /// The part of free memory that is in blocks too small for a huge page, of all large zones, 0 to 1.
    pub fn index(&self) -> Option<f64> {
        FragView::scores(&self.look).get(FragView::ORDER).map(|score| score.value())
    }

    /// Free memory in pages.
    pub fn free_pages(&self) -> Option<u64> {
        let free = |zone: &FragSample| {
            let blocks = zone.free_blocks.as_deref()?;
            Some(pagemill_analysis::fragmentation::free_pages(blocks))
        };
        let all: Vec<u64> = self.look.iter().filter_map(free).collect();
        (!all.is_empty()).then(|| sum(all))
    }

    /// Free blocks that hold a huge page.
    pub fn huge_blocks(&self) -> u64 {
        let of = |zone: &FragSample| {
            let blocks = zone.free_blocks.as_deref().unwrap_or_default();
            // A block of each order above holds two of the one below.
            let large = blocks.iter().skip(FragView::ORDER).enumerate();
            sum(large.map(|(above, count)| count.saturating_mul(1_u64 << above.min(32))))
        };
        sum(self.look.iter().map(of))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_look_is_all_its_zones() {
        let mut machine = Machine::default();
        for (time, blocks) in
            [(1, [512, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0]), (2, [0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 1])]
        {
            for node in [0, 1] {
                machine.event(&Event::Frag(Box::new(FragSample {
                    time: Nanos(time),
                    node: Some(node),
                    free_blocks: Some(blocks.into()),
                    ..FragSample::default()
                })));
            }
        }
        assert_eq!(machine.unusable.last(), Some(0.5));
        assert_eq!((machine.index(), machine.free_pages()), (Some(0.0), Some(2 * 1536)));
        assert_eq!(machine.huge_blocks(), 6);
        // The first zone of the next look.
        machine.event(&Event::Frag(Box::new(FragSample {
            time: Nanos(3),
            node: Some(0),
            free_blocks: Some(vec![1; 11]),
            ..FragSample::default()
        })));
        assert_eq!((machine.free_pages(), machine.huge_blocks()), (Some(2 * 1536), 6));
    }
}

//! A figure over time in bounded room: when it is full every second point goes, so the whole run stays in view.

use pagemill_model::Nanos;

/// Points that are kept at most.
const MOST: usize = 1024;

/// Points in the order of time.
#[derive(Clone, Debug, Default)]
pub struct History {
    points: Vec<(Nanos, f64)>,
    /// Points that are nearer to each other than this are one, the larger.
    least: u64,
}

impl History {
    /// Adds a point; one that is older than the last counts as of the last's time.
    pub fn add(&mut self, time: Nanos, value: f64) {
        if let Some((last, kept)) = self.points.last_mut()
            && time.since(*last).0 < self.least
        {
            *kept = kept.max(value);
            return;
        }
        let time = self.points.last().map_or(time, |(last, _)| time.max(*last));
        self.points.push((time, value));
        if self.points.len() < MOST {
            return;
        }
        let length = time.since(self.points[0].0).0;
        self.least = (length / (MOST as u64 / 2)).max(1);
        let all = std::mem::take(&mut self.points);
        all.into_iter().for_each(|(time, value)| self.add(time, value));
    }

    /// The last point.
    pub fn last(&self) -> Option<f64> {
        self.points.last().map(|(_, value)| *value)
    }

    /// The points from `since` on: seconds after that, value.
    pub fn since(&self, since: Nanos) -> Vec<(f64, f64)> {
        let from = self.points.partition_point(|(time, _)| *time < since);
        let points = self.points[from..].iter();
        points.map(|(time, value)| (time.since(since).seconds(), *value)).collect()
    }

    /// The highest point.
    pub fn highest(&self) -> Option<f64> {
        self.points.iter().map(|(_, value)| *value).reduce(f64::max)
    }

    /// The highest point of each of `columns` stretches of equal length; where there is none, that of the stretch
    /// before. Fewer columns where there are fewer points.
    pub fn columns(&self, columns: usize) -> Vec<f64> {
        let columns = columns.min(self.points.len());
        let (Some(first), Some(last), 1..) = (self.points.first(), self.points.last(), columns)
        else {
            return Vec::new();
        };
        let length = last.0.since(first.0).0.max(1) as f64;
        let mut out: Vec<Option<f64>> = vec![None; columns];
        for (time, value) in &self.points {
            let at = time.since(first.0).0 as f64 / length * columns as f64;
            let column = &mut out[(at as usize).min(columns.saturating_sub(1))];
            *column = Some(column.map_or(*value, |kept| kept.max(*value)));
        }
        let mut before = first.1;
        let filled = out.into_iter().map(|value| {
            before = value.unwrap_or(before);
            before
        });
        filled.collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn however_many_points_come_the_room_is_bounded_and_both_ends_and_the_peak_stay() {
        let mut history = History::default();
        for second in 0..100_000_u64 {
            let value = if second == 31_415 { 99.0 } else { 1.0 };
            history.add(Nanos(second * 1_000_000_000), value);
        }
        assert!(history.points.len() <= MOST, "{}", history.points.len());
        assert_eq!((history.highest(), history.last()), (Some(99.0), Some(1.0)));
        let columns = history.columns(10);
        assert_eq!(columns, [1.0, 1.0, 1.0, 99.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0]);
    }

    #[test]
    fn a_stretch_without_a_point_is_as_the_one_before() {
        let mut history = History::default();
        for (second, value) in [(0, 5.0), (1, 7.0), (10, 2.0)] {
            history.add(Nanos(second), value);
        }
        assert_eq!(history.columns(3), [7.0, 7.0, 2.0]);
        assert_eq!(history.columns(0), Vec::<f64>::new());
        assert_eq!(History::default().columns(5), Vec::<f64>::new());
        assert_eq!(history.since(Nanos(1)), [(0.0, 7.0), (9e-9, 2.0)]);
    }
}

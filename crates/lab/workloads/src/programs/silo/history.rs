//! Whether there is a serial order in which transactions would have done what they did.
//!
//! ```text
//!  writer of a version -> who read it -> writer of the next version          no circle: there is such an order
//!  writer of a version ----------------> writer of the next version          (Adya, 1999)
//! ```

use std::collections::HashMap;

use super::store::{Place, Trace};

/// An error if the transactions depend on each other in a circle, or if two overwrote the same version.
pub(super) fn check(traces: &[Trace]) -> Result<(), String> {
    let mut writers: HashMap<(Place, u64), usize> = HashMap::new();
    let mut next: HashMap<(Place, u64), usize> = HashMap::new();
    for (number, trace) in traces.iter().enumerate() {
        for &(place, before) in &trace.writes {
            writers.insert((place, trace.tid), number);
            if next.insert((place, before), number).is_some() {
                return Err(format!("two transactions overwrote the same version of {place:?}"));
            }
        }
    }
    let mut after: Vec<Vec<usize>> = vec![Vec::new(); traces.len()];
    let mut waits = vec![0_usize; traces.len()];
    let mut depend = |from: Option<&usize>, to: Option<&usize>| {
        if let (Some(&from), Some(&to)) = (from, to)
            && from != to
        {
            after[from].push(to);
            waits[to] += 1;
        }
    };
    for (number, trace) in traces.iter().enumerate() {
        for version in &trace.writes {
            depend(writers.get(version), Some(&number));
        }
        for version in &trace.reads {
            depend(writers.get(version), Some(&number));
            depend(Some(&number), next.get(version));
        }
    }
    let mut ready: Vec<usize> = (0..traces.len()).filter(|&number| waits[number] == 0).collect();
    let mut ordered = 0;
    while let Some(number) = ready.pop() {
        ordered += 1;
        for &to in &after[number] {
            waits[to] -= 1;
            if waits[to] == 0 {
                ready.push(to);
            }
        }
    }
    if ordered == traces.len() {
        Ok(())
    } else {
        let left = traces.len() - ordered;
        Err(format!("no serial order: {left} of {} transactions wait for each other", traces.len()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn trace(reads: &[(usize, u64)], writes: &[(usize, u64)], tid: u64) -> Trace {
        let place = |&(at, tid): &(usize, u64)| ((0, at), tid);
        Trace {
            reads: reads.iter().map(place).collect(),
            writes: writes.iter().map(place).collect(),
            tid,
        }
    }

    #[test]
    fn a_write_skew_and_a_lost_update_have_no_serial_order() {
        // Each reads what the other overwrites.
        let skew = [trace(&[(1, 0), (2, 0)], &[(1, 0)], 5), trace(&[(1, 0), (2, 0)], &[(2, 0)], 6)];
        assert!(check(&skew).unwrap_err().contains("2 of 2"));
        let lost = [trace(&[(1, 0)], &[(1, 0)], 5), trace(&[(1, 0)], &[(1, 0)], 6)];
        assert!(check(&lost).unwrap_err().contains("same version"));
        let serial = [trace(&[(1, 0)], &[(1, 0)], 5), trace(&[(1, 5), (2, 0)], &[(1, 5)], 6)];
        check(&serial).unwrap();
    }
}

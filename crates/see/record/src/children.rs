//! What the processes hold that a recorded one has started, and theirs: of a server that forks workers it may be nearly
//! all.
//!
//! A look reads `/proc/PID/smaps_rollup` of each, which walks its page tables, so the time between two looks is at
//! least [`REST`] times what one took: 4 % of the time of one CPU at most, however many there are. Where there is none
//! a look reads one short file a thread.

use std::time::Instant;

use pagemill_kernel::Linux;
use pagemill_kernel::process::same_memory;
use pagemill_model::{Bytes, HeapSample, Pid};

/// Time between two looks, in times of what one took.
const REST: u32 = 25;

/// Looks at them, now and then.
#[derive(Debug, Default)]
pub(crate) struct Children {
    /// When next; at once where none was taken.
    due: Option<Instant>,
}

impl Children {
    /// Fills in the columns, if it is time to.
    pub(crate) fn look(&mut self, linux: &Linux, sample: &mut HeapSample) {
        let begun = Instant::now();
        if self.due.is_some_and(|due| begun < due) {
            return;
        }
        let Some(parent) = sample.pid.and_then(|pid| u32::try_from(pid).ok()).map(Pid) else {
            return;
        };
        let (mut count, mut sum, mut most) = (0, 0, None);
        for pid in linux.descendants(&[parent]).into_iter().skip(1) {
            // One that has its parent's memory until it executes a program has none besides (vfork(2)).
            let shares = linux.stat(pid).ok().map(|stat| same_memory(pid, stat.parent));
            // Whoever ends meanwhile, or may not be looked into, has no memory here.
            let usage = linux.smaps_rollup(pid).ok().filter(|_| shares != Some(Some(true)));
            let Some(pss) = usage.and_then(|usage| usage.pss).filter(|pss| *pss > 0) else {
                continue;
            };
            count += 1;
            sum += pss;
            most = most.max(Some((pss, u64::from(pid))));
        }
        sample.children = Some(count);
        sample.children_pss = Some(Bytes(sum));
        sample.largest_child = most.map(|(_, pid)| pid);
        self.due = Some(begun + begun.elapsed() * REST);
    }
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};
    use std::time::Duration;

    use super::*;

    /// 33 MiB were told of a server whose workers had 170 more.
    #[test]
    fn what_children_and_theirs_hold_is_summed_and_looks_at_many_are_rare() {
        let linux = Linux::live();
        let mut shell = Command::new("sh")
            .args(["-c", "sh -c 'sh -c \"read line; exit 0\"; exit 0'; exit 0"])
            .stdin(Stdio::piped())
            .spawn()
            .unwrap();
        let pid = Some(u64::from(shell.id()));
        let look = |children: &mut Children| {
            let mut sample = HeapSample { pid, ..HeapSample::default() };
            children.look(&linux, &mut sample);
            sample
        };
        let end = Instant::now() + Duration::from_secs(60);
        let sample = loop {
            let sample = look(&mut Children::default());
            if sample.children == Some(2) && sample.children_pss > Some(Bytes(0)) {
                break sample;
            }
            assert!(Instant::now() < end, "{sample:?}");
            std::thread::sleep(Duration::from_millis(5));
        };
        let below = linux.descendants(&[Pid(shell.id())]);
        assert!(below[1..].contains(&Pid(sample.largest_child.unwrap() as u32)), "{sample:?}");
        let mut paced = Children { due: Some(Instant::now() + Duration::from_secs(3600)) };
        assert_eq!(look(&mut paced), HeapSample { pid, ..HeapSample::default() });
        drop(shell.stdin.take());
        assert!(shell.wait().unwrap().success());
        let none = look(&mut Children::default());
        assert_eq!((none.children, none.largest_child), (Some(0), None));
    }
}

//! Independent pieces of work on all processors.
//!
//! Results come in the order of the items, and nothing is shared between pieces, so an answer does not depend on how
//! many processors there are or on who was first. Where the system gives no more threads, the ones there are do it;
//! without any the caller's own does.

use std::num::NonZeroUsize;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;
use std::thread;

/// `work` on each item; `done` is called on this thread with the number of finished items after each.
pub fn map<T: Sync, R: Send>(
    items: &[T],
    work: impl Fn(&T) -> R + Sync,
    done: &mut dyn FnMut(usize),
) -> Vec<R> {
    let workers = thread::available_parallelism().map_or(1, NonZeroUsize::get).min(items.len());
    let mut results: Vec<Option<R>> = items.iter().map(|_| None).collect();
    let next = AtomicUsize::new(0);
    let take = || {
        let at = next.fetch_add(1, Ordering::Relaxed);
        items.get(at).map(|item| (at, work(item)))
    };
    let mut finished = 0;
    let mut keep = |(at, result): (usize, R)| {
        results[at] = Some(result);
        finished += 1;
        done(finished);
    };
    let (sender, receiver) = mpsc::channel();
    thread::scope(|scope| {
        let wanted = if workers < 2 { 0 } else { workers };
        let start = |_| {
            let (sender, take) = (sender.clone(), &take);
            let until_all_is_taken = move || {
                while let Some(result) = take()
                    && sender.send(result).is_ok()
                {}
            };
            thread::Builder::new().spawn_scoped(scope, until_all_is_taken)
        };
        let started = (0..wanted).map_while(|worker| start(worker).ok()).count();
        drop(sender);
        if started == 0 {
            std::iter::from_fn(take).for_each(&mut keep);
        }
        receiver.iter().for_each(keep);
    });
    // A worker that panicked has ended the scope, so every place is filled.
    results.into_iter().flatten().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_keep_the_order_of_the_items_and_each_is_counted() {
        for count in [0, 1, 2, 100] {
            let items: Vec<usize> = (0..count).collect();
            let mut seen = Vec::new();
            let squares = map(&items, |item| item * item, &mut |done| seen.push(done));
            assert_eq!(squares, items.iter().map(|item| item * item).collect::<Vec<_>>());
            assert_eq!(seen, (1..=count).collect::<Vec<_>>());
        }
    }
}

//! Independent pieces of work on all processors.
//!
//! Results come in the order of the items, and nothing is shared between pieces, so an answer does not depend on how many
//! processors there are or on who was first.

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
    if workers < 2 {
        let one = |(at, item)| {
            let result = work(item);
            done(at + 1);
            result
        };
        return items.iter().enumerate().map(one).collect();
    }
    let next = AtomicUsize::new(0);
    let (sender, receiver) = mpsc::channel();
    let mut results: Vec<Option<R>> = items.iter().map(|_| None).collect();
    thread::scope(|scope| {
        for _ in 0..workers {
            let (sender, next, work) = (sender.clone(), &next, &work);
            scope.spawn(move || {
                while let Some((at, item)) = {
                    let at = next.fetch_add(1, Ordering::Relaxed);
                    items.get(at).map(|item| (at, item))
                } {
                    if sender.send((at, work(item))).is_err() {
                        break;
                    }
                }
            });
        }
        drop(sender);
        for (finished, (at, result)) in receiver.iter().enumerate() {
            results[at] = Some(result);
            done(finished + 1);
        }
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

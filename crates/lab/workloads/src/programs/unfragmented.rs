//! `unfragmented`: what does the heap itself cost when there is nothing to compact?
//!
//! A chained hash table in the shape of Redis's dictionary: 10 M keys, each with an entry of
//! 24 bytes (key, value, next), a key string of 24 bytes and a value of 64 bytes; the table of
//! buckets doubles when it is full. Nothing is freed but outgrown tables, so every byte above the
//! requested ones is the allocator's.
//!
//! ```text
//!  buckets (8 B each, 2^n)      entry 24 B            key 24 B     value 64 B
//!  [ . ][ -+-][ . ][ . ]  --->  [key|value|next] ---> [........]   [..........]
//! ```
//!
//! Check: every key is found again with its own value.

use std::thread;
use std::time::Instant;

use crate::program::{Outcome, Params, Report, own_pss};
use pagemill_model::random::mix;

const KEYS: usize = 10_000_000;

type Key = Box<[u64; 3]>;
type Value = Box<[u64; 8]>;

struct Entry {
    key: Key,
    value: Value,
    next: Option<Box<Entry>>,
}

/// The requested bytes of one key, without its share of the bucket table.
const BYTES_A_KEY: usize = size_of::<Entry>() + size_of::<[u64; 3]>() + size_of::<[u64; 8]>();

struct Dictionary {
    buckets: Vec<Option<Box<Entry>>>,
    keys: usize,
}

/// The words of key `number`; the first one is also its hash.
fn words(number: u64) -> [u64; 3] {
    let hash = mix(number);
    [hash, number, !number]
}

impl Dictionary {
    fn new() -> Self {
        Self { buckets: empty(4), keys: 0 }
    }

    fn insert(&mut self, number: u64) {
        if self.keys == self.buckets.len() {
            self.grow();
        }
        let key = words(number);
        let bucket = key[0] as usize & (self.buckets.len() - 1);
        let next = self.buckets[bucket].take();
        let entry = Entry { key: Box::new(key), value: Box::new([number; 8]), next };
        self.buckets[bucket] = Some(Box::new(entry));
        self.keys += 1;
    }

    /// Doubles the table; entries are re-linked, not copied.
    fn grow(&mut self) {
        let larger = empty(2 * self.buckets.len());
        let mask = larger.len() - 1;
        let old = std::mem::replace(&mut self.buckets, larger);
        for mut chain in old {
            while let Some(mut entry) = chain {
                chain = entry.next.take();
                let bucket = entry.key[0] as usize & mask;
                entry.next = self.buckets[bucket].take();
                self.buckets[bucket] = Some(entry);
            }
        }
    }

    fn find(&self, number: u64) -> Option<&Value> {
        let key = words(number);
        let mut entry = self.buckets[key[0] as usize & (self.buckets.len() - 1)].as_ref();
        while let Some(found) = entry {
            if *found.key == key {
                return Some(&found.value);
            }
            entry = found.next.as_ref();
        }
        None
    }
}

fn empty(length: usize) -> Vec<Option<Box<Entry>>> {
    std::iter::repeat_with(|| None).take(length).collect()
}

pub(super) fn run(params: &Params) -> Outcome {
    let keys = params.scaled(KEYS) as u64;
    let started = Instant::now();
    let mut dictionary = Dictionary::new();
    for number in 0..keys {
        dictionary.insert(number);
    }
    let seconds = started.elapsed().as_secs_f64();
    thread::sleep(params.hold);
    let pss = own_pss();
    let wrong =
        (0..keys).filter(|&number| dictionary.find(number).is_none_or(|v| **v != [number; 8]));
    let wrong = wrong.count();
    if wrong > 0 {
        return Err(format!("{wrong} of {keys} keys lost or with a wrong value").into());
    }
    let requested = keys as usize * BYTES_A_KEY + 8 * dictionary.buckets.len();
    // Freeing everything one by one measures nothing that this program is for.
    std::mem::forget(dictionary);
    let mut metrics = vec![("requested_bytes", requested as f64)];
    metrics.extend(pss.map(|bytes| ("end_pss_bytes", bytes)));
    Ok(Report {
        operations: 3 * keys,
        seconds,
        metrics,
        check: format!("all {keys} keys found with their values"),
    })
}

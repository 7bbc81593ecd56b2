//! `cache` and `cache-zipf`: a cache of values of 4 KiB in slabs, as CacheLib has them.
//!
//! ```text
//!  shard (by key):  index  key -> slot        slots of 64 B key + 4 KiB value       list, used last first
//!                   a set that finds no free slot takes that of the item used longest ago
//! ```
//!
//! The load of HeMem's and Colloid's key-value evaluations (SOSP 2021, 2024): keys of 64 bytes, values of 4 KiB, nine
//! gets to one set; nine of ten go to a fifth of the keys (`cache`) or follow Zipf's law (`cache-zipf`, exponent 0.99).
//! The cache has room for three quarters of 256 Ki keys; a get that misses is followed by a set, as from a database.
//!
//! Check: every value that a get returns is one that was set for its key, whole, and not older than what was there
//! before the get began; in the end, indexes, lists and slots agree and hold nothing else. `operations` counts gets and
//! sets.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use crate::program::{Outcome, Params, Report};
use crate::team;
use crate::zipf::Zipf;
use pagemill_model::random::{Random, mix};

/// Keys and operations at full size.
const KEYS: usize = 1 << 18;
const OPERATIONS: usize = 8_000_000;
const GETS: f64 = 0.9;
/// One in so many keys is hot, and the share of operations on these.
const HOT: usize = 5;
const TO_HOT: f64 = 0.9;
/// Words of a value: 4 KiB.
const WORDS: usize = 512;
const SHARDS: usize = 64;
const NONE: u32 = u32::MAX;

type Key = [u8; 64];

pub(super) fn hot(params: &Params) -> Outcome {
    let keys = params.scaled(KEYS).max(SHARDS * 4);
    run(params, keys, |random| {
        if random.chance(TO_HOT) { random.index(keys / HOT) } else { random.index(keys) }
    })
}

pub(super) fn zipf(params: &Params) -> Outcome {
    let keys = params.scaled(KEYS).max(SHARDS * 4);
    let zipf = Zipf::new(keys as u64);
    run(params, keys, |random| zipf.scattered(random) as usize)
}

fn run(params: &Params, keys: usize, draw: impl Fn(&mut Random) -> usize + Sync) -> Outcome {
    let cache = Cache::new(keys);
    // Filled by a set of each key.
    (0..keys).for_each(|number| cache.set(number));
    let operations = params.share(OPERATIONS);
    let started = Instant::now();
    let parts = team::each((0..params.threads).collect(), |thread| -> Result<_, String> {
        let mut random = Random::new(mix(params.seed ^ mix(thread as u64)));
        let mut value = vec![0; WORDS];
        let (mut gets, mut hits, mut sets) = (0_u64, 0_u64, 0_u64);
        for _ in 0..operations {
            let number = draw(&mut random);
            let get = random.chance(GETS);
            gets += u64::from(get);
            if get && cache.get(number, &mut value)? {
                hits += 1;
            } else {
                cache.set(number);
                sets += 1;
            }
        }
        Ok((gets, hits, sets))
    });
    let seconds = started.elapsed().as_secs_f64();
    let (mut gets, mut hits, mut sets) = (0, 0, 0);
    for part in parts {
        let part = part?;
        (gets, hits, sets) = (gets + part.0, hits + part.1, sets + part.2);
    }
    let items = cache.check()?;
    Ok(Report {
        operations: gets + sets,
        seconds,
        metrics: vec![
            ("operations_per_second", (gets + sets) as f64 / seconds),
            ("hit_rate", hits as f64 / gets.max(1) as f64),
            ("items", items as f64),
            ("evictions", cache.evictions() as f64),
        ],
        check: format!("{hits} values were what was set, {items} items are consistent"),
    })
}

/// The key of a number: 64 bytes.
fn key(number: usize) -> Key {
    let mut key = [0; 64];
    for (at, word) in key.chunks_exact_mut(8).enumerate() {
        word.copy_from_slice(&mix((number as u64) << 3 | at as u64).to_le_bytes());
    }
    key
}

/// A word of the value that is set for a key the `version`th time.
#[inline(always)]
fn word(number: usize, version: u32, at: usize) -> u64 {
    let base = (number as u64) << 32 | u64::from(version);
    if at == 0 { base } else { base.wrapping_mul(at as u64 | 1) }
}

struct Cache {
    shards: Vec<Mutex<Shard>>,
    /// How often each key was set.
    versions: Vec<AtomicU32>,
}

#[derive(Clone)]
struct Item {
    key: Key,
    newer: u32,
    older: u32,
}

/// A part of the cache.
struct Shard {
    index: HashMap<Key, u32>,
    items: Vec<Item>,
    values: Vec<u64>,
    room: usize,
    newest: u32,
    oldest: u32,
    evictions: u64,
}

impl Cache {
    fn new(keys: usize) -> Self {
        let room = keys * 3 / 4 / SHARDS;
        let shard = || {
            Mutex::new(Shard {
                index: HashMap::with_capacity(room),
                items: Vec::with_capacity(room),
                values: vec![0; room * WORDS],
                room,
                newest: NONE,
                oldest: NONE,
                evictions: 0,
            })
        };
        Self {
            shards: (0..SHARDS).map(|_| shard()).collect(),
            versions: (0..keys).map(|_| AtomicU32::new(0)).collect(),
        }
    }

    fn with<T>(&self, key: &Key, work: impl FnOnce(&mut Shard) -> T) -> T {
        let shard = &self.shards[usize::from(key[0]) % SHARDS];
        work(&mut shard.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Sets the next value of a key.
    fn set(&self, number: usize) {
        let key = key(number);
        self.with(&key, |shard| {
            // Under the lock, so that values of a key are set in order.
            let version = self.versions[number].fetch_add(1, Ordering::Relaxed) + 1;
            let value = shard.place(&key);
            value.iter_mut().enumerate().for_each(|(at, out)| *out = word(number, version, at));
        });
    }

    /// Copies the value of a key and checks it; false if there is none.
    fn get(&self, number: usize, value: &mut [u64]) -> Result<bool, String> {
        let key = key(number);
        let set_before = self.versions[number].load(Ordering::Relaxed);
        let found = self.with(&key, |shard| match shard.find(&key) {
            Some(found) => {
                value.copy_from_slice(found);
                true
            }
            None => false,
        });
        if found {
            let version = check(number, value)?;
            let set_after = self.versions[number].load(Ordering::Relaxed);
            if !(set_before..=set_after).contains(&version) {
                return Err(format!(
                    "key {number} has value {version}, between {set_before} and {set_after} were set"
                ));
            }
        }
        Ok(found)
    }

    fn evictions(&self) -> u64 {
        let of = |shard: &Mutex<Shard>| shard.lock().map_or(0, |shard| shard.evictions);
        self.shards.iter().map(of).sum()
    }

    /// Items of the whole cache, each checked.
    fn check(&self) -> Result<usize, String> {
        let mut items = 0;
        for shard in &self.shards {
            items += shard.lock().unwrap_or_else(PoisonError::into_inner).check()?;
        }
        let numbers = (0..self.versions.len()).map(|number| (number, key(number)));
        let mut found = 0;
        for (number, key) in numbers {
            let version = self.with(&key, |shard| {
                shard.index.get(&key).map(|&slot| check(number, shard.value(slot)))
            });
            let Some(version) = version else { continue };
            let (version, last) = (version?, self.versions[number].load(Ordering::Relaxed));
            if version != last {
                return Err(format!("key {number} has value {version}, the last set was {last}"));
            }
            found += 1;
        }
        if found != items {
            return Err(format!("{items} items, of which {found} have a key that was set"));
        }
        Ok(items)
    }
}

/// Which value of the key this is, if it is whole.
fn check(number: usize, value: &[u64]) -> Result<u32, String> {
    let version = value[0] as u32;
    let whole = value.iter().enumerate().all(|(at, &found)| found == word(number, version, at));
    if whole { Ok(version) } else { Err(format!("the value of key {number} is damaged")) }
}

impl Shard {
    fn value(&self, slot: u32) -> &[u64] {
        &self.values[slot as usize * WORDS..(slot as usize + 1) * WORDS]
    }

    fn find(&mut self, key: &Key) -> Option<&[u64]> {
        let &slot = self.index.get(key)?;
        self.unlink(slot);
        self.link(slot);
        Some(self.value(slot))
    }

    /// The place of a key's value; where there is none, a free slot, or that of the item used longest ago.
    fn place(&mut self, key: &Key) -> &mut [u64] {
        let slot = if let Some(&slot) = self.index.get(key) {
            self.unlink(slot);
            slot
        } else {
            let slot = if self.items.len() < self.room {
                self.items.push(Item { key: *key, newer: NONE, older: NONE });
                self.items.len() as u32 - 1
            } else {
                let slot = self.oldest;
                self.unlink(slot);
                let item = &mut self.items[slot as usize];
                self.index.remove(&item.key);
                item.key = *key;
                self.evictions += 1;
                slot
            };
            self.index.insert(*key, slot);
            slot
        };
        self.link(slot);
        &mut self.values[slot as usize * WORDS..(slot as usize + 1) * WORDS]
    }

    fn unlink(&mut self, slot: u32) {
        let Item { newer, older, .. } = self.items[slot as usize];
        match newer {
            NONE => self.newest = older,
            newer => self.items[newer as usize].older = older,
        }
        match older {
            NONE => self.oldest = newer,
            older => self.items[older as usize].newer = newer,
        }
    }

    fn link(&mut self, slot: u32) {
        let older = self.newest;
        match older {
            NONE => self.oldest = slot,
            older => self.items[older as usize].newer = slot,
        }
        let item = &mut self.items[slot as usize];
        (item.newer, item.older) = (NONE, older);
        self.newest = slot;
    }

    /// Items, if the list and the index have the same ones.
    fn check(&self) -> Result<usize, String> {
        let (mut slot, mut count) = (self.newest, 0);
        while slot != NONE {
            let item = &self.items[slot as usize];
            if self.index.get(&item.key) != Some(&slot) {
                return Err(format!("slot {slot} is in the list and not in the index"));
            }
            count += 1;
            if count > self.items.len() {
                return Err("the list of items has a circle".into());
            }
            slot = item.older;
        }
        if count != self.index.len() || count != self.items.len() {
            return Err(format!(
                "{count} items are in the list, {} in the index",
                self.index.len()
            ));
        }
        Ok(count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_item_used_longest_ago_goes_and_what_is_damaged_is_found() {
        let cache = Cache::new(SHARDS * 4);
        // All keys of one shard, which has room for three.
        let own: Vec<usize> =
            (0..SHARDS * 4).filter(|&number| usize::from(key(number)[0]) % SHARDS == 7).collect();
        let own = &own[..4];
        let mut value = vec![0; WORDS];
        own[..3].iter().for_each(|&number| cache.set(number));
        assert!(cache.get(own[0], &mut value).unwrap());
        cache.set(own[3]);
        assert!(!cache.get(own[1], &mut value).unwrap());
        assert!(cache.get(own[0], &mut value).unwrap());
        assert_eq!((cache.check().unwrap(), cache.evictions()), (3, 1));
        cache.with(&key(own[2]), |shard| shard.place(&key(own[2]))[100] ^= 1);
        assert!(cache.get(own[2], &mut value).unwrap_err().contains("damaged"));
        assert!(cache.check().is_err());
        cache.with(&key(own[2]), |shard| shard.place(&key(own[2]))[100] ^= 1);
        cache.versions[own[2]].fetch_add(1, Ordering::Relaxed);
        assert!(cache.get(own[2], &mut value).unwrap_err().contains("were set"));
        cache.with(&key(own[2]), |shard| shard.index.remove(&key(own[2])));
        assert!(cache.check().unwrap_err().contains("not in the index"));
    }
}

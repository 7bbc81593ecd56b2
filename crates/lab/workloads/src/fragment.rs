//! The published Redis load: fill with small values, then with larger ones, until eviction has
//! riddled the heap with holes.
//!
//! Keys look random (a bijection of their number), so their order in the server's hash table and
//! in its heap are unrelated; values are filled with a byte of the key.

use std::io;

use crate::resp::{Client, Reply};
use pagemill_model::random::mix;

/// One part of the load: `keys` values of `bytes` bytes each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Phase {
    /// How many.
    pub keys: u64,
    /// How large.
    pub bytes: usize,
}

/// What a phase did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Inserted {
    /// Accepted by the server.
    pub stored: u64,
    /// Refused, with `-OOM` for instance.
    pub refused: u64,
}

/// The key of `number` under `seed`: 16 hexadecimal digits, different for different numbers.
pub fn key(seed: u64, number: u64) -> [u8; 16] {
    let mut key = [0; 16];
    let word = mix(mix(seed) ^ number);
    for (place, digit) in key.iter_mut().enumerate() {
        *digit = b"0123456789abcdef"[(word >> (60 - 4 * place)) as usize & 15];
    }
    key
}

/// Sends a phase in pipelines of `pipeline` commands. Numbers of keys start at `first`, so that
/// phases do not overwrite each other.
///
/// # Errors
/// The server cannot be written to or read from, or answers with an error.
pub fn insert(
    client: &mut Client,
    phase: Phase,
    seed: u64,
    first: u64,
    pipeline: u64,
) -> io::Result<Inserted> {
    let mut inserted = Inserted::default();
    let mut value = vec![0; phase.bytes];
    let mut number = 0;
    while number < phase.keys {
        for _ in 0..pipeline.clamp(1, phase.keys - number) {
            let key = key(seed, first + number);
            value.fill(key[15]);
            client.push(&[b"SET", &key, &value]);
            number += 1;
        }
        client.flush(&mut |reply| match reply {
            Reply::Status(_) => inserted.stored += 1,
            _ => inserted.refused += 1,
        })?;
    }
    Ok(inserted)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn keys_differ_and_repeat_with_the_seed() {
        let keys: HashSet<_> = (0..10_000).map(|number| key(1, number)).collect();
        assert_eq!(keys.len(), 10_000);
        assert_eq!(key(1, 5), key(1, 5));
        assert_ne!(key(1, 5), key(2, 5));
        assert_eq!(key(0, 0), *b"0000000000000000");
    }
}

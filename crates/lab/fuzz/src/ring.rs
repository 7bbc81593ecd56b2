//! The ring of call sites, whose words the traced program writes: whatever they say, a ticket is read once.
//!
//! ```text
//!  tickets given 8 │ word of a slot 1 │ value 8 │ …       reads in between: a word that is none
//! ```

use std::sync::atomic::{AtomicU64, Ordering};

use pagemill_preload_sys::sites as layout;
use pagemill_record::recorders::allocations::Notes;

/// Slots of the ring here, so that it is soon full.
const SLOTS: usize = 16;
/// Words of the ring here.
const WORDS: usize = layout::HEADER + SLOTS * layout::SLOT;

/// Readings of a ring while it is written.
pub fn ring(bytes: &[u8]) {
    read(bytes);
}

/// The notes that were read, and how many of them had a stack.
fn read(bytes: &[u8]) -> (usize, usize) {
    let words: Vec<AtomicU64> = (0..WORDS).map(|_| AtomicU64::new(0)).collect();
    let mut notes = Notes::begin();
    let (mut told, mut stacks, mut latest) = (0, 0, 0);
    let mut look = |words: &[AtomicU64]| {
        for note in notes.read(words) {
            assert!(note.time.0 >= latest, "{note:?} after {latest}");
            latest = note.time.0;
            let most = 3 + layout::MORE * (layout::SLOT - 1);
            assert!(note.stack.as_ref().is_none_or(|stack| stack.len() <= most), "{note:?}");
            told += 1;
            stacks += usize::from(note.stack.is_some());
        }
    };
    for chunk in bytes.as_chunks::<9>().0 {
        let [word, value @ ..] = *chunk;
        let value = u64::from_le_bytes(value);
        match (usize::from(word), word) {
            // Tickets given.
            (_, u8::MAX) => words[1].store(value, Ordering::Relaxed),
            (word, _) if word < SLOTS * layout::SLOT => {
                words[layout::HEADER + word].store(value, Ordering::Relaxed);
            }
            _ => look(&words),
        }
    }
    look(&words);
    (told, stacks)
}

pub fn seeds() -> Vec<Vec<u8>> {
    let put = |word: u8, value: u64| [&[word], &value.to_le_bytes()[..]].concat();
    let slot = |ticket: u64, words: [u64; 7]| {
        let at = (ticket as usize % SLOTS * layout::SLOT) as u8;
        let head = [put(at, ticket + 1), put(u8::MAX, ticket + 1)].concat();
        let words = (1..).zip(words).map(|(word, value)| put(at + word, value)).collect::<Vec<_>>();
        [words.concat(), head].concat()
    };
    let taken = |ticket: u64, size| slot(ticket, [0, ticket << 12, size, 7, 0xa, 0xb, 0]);
    let freed = |ticket: u64, of: u64| slot(ticket, [1 << 50, of << 12, layout::FREED, 7, 0, 0, 0]);
    let read = put(200, 0);
    let plain = [taken(0, 64), taken(1, 1 << 20), read.clone(), freed(2, 1), freed(3, 0)].concat();
    let full = (0..40).flat_map(|ticket| taken(ticket, 5000)).collect::<Vec<u8>>();
    // A large one with a second slot; and the last tickets that there are.
    let large = [put(24, 0), taken(0, 1 << 56 | 1 << 21), taken(1, 0), read].concat();
    let last = [taken(u64::MAX - 2, 1 << 56), put(u8::MAX, u64::MAX)].concat();
    vec![plain, full, large, last]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_seeds_are_notes() {
        let told: Vec<_> = seeds().iter().map(|seed| read(seed)).collect();
        assert_eq!(told[0], (4, 2), "two taken, two given back");
        assert!(told[1].0 >= 8, "{told:?}");
        assert_eq!(told[2].0, 1, "one note of two slots");
    }
}

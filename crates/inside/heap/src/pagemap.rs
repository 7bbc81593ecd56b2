//! The page map: address to span descriptor, for the whole address space, with nothing reserved up
//! front.
//!
//! ```text
//!  address   63..48   47 ........ 32   31 ....... 12   11 ... 0
//!             zero     root index       leaf index      offset
//! ```
//!
//! The root lives in the heap's static (untouched pages of it cost nothing); a leaf covers 4 GiB and is
//! mapped when the first granule in it is used. An entry is null (not ours), or the descriptor of
//! the run that covers the granule. Runs that are not small spans have an entry at their first and
//! last granule only; what lies between holds null or the mark of freed memory.
//!
//! ```text
//!  entry     63 ........ 48   47 ............ 7   6 .. 0
//!             start, 15..0     descriptor          kind
//! ```
//!
//! The **kind** is 0, or, for a span whose objects are freed without further questions, its class + 1: then the entry
//! alone says whether a slot starts at an address and of what class, and a free does not touch the descriptor, which in
//! a large heap is in no cache. Granules with slots that neither the program holds nor a mark tells, spans that
//! compaction works on, and all spans where frees go another way (level 2, hardened mode), are of kind 0.

use core::ptr::null_mut;
use core::sync::atomic::{AtomicPtr, Ordering};

use crate::meta::Meta;
use crate::os::Os;
use crate::size::{self, CLASSES, GRANULE};
use crate::span::Span;

const ROOT: usize = 1 << 16;
const LEAF: usize = 1 << 20;
const SHIFT: u32 = GRANULE.trailing_zeros();

/// The bits of an entry that say the kind, those of the descriptor, and where those of the start begin.
const KIND: usize = align_of::<Span>() - 1;
const DESCRIPTOR: usize = (1 << START) - 1 - KIND;
const START: u32 = 48;
const _: () = assert!(CLASSES < KIND && size::SPAN_MAX <= 1 << (usize::BITS - START));

/// A slot, as its page map entry tells.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Plain {
    kind: usize,
}

impl Plain {
    /// Its class, below [`CLASSES`].
    #[inline(always)]
    pub fn class(self) -> usize {
        self.kind - 1
    }
}

/// The entries of 4 GiB.
#[derive(Debug)]
pub(crate) struct Leaf {
    entries: [AtomicPtr<Span>; LEAF],
}

impl Leaf {
    #[inline(always)]
    fn entry(&self, address: usize) -> &AtomicPtr<Span> {
        &self.entries[(address >> SHIFT) & (LEAF - 1)]
    }

    /// The slot that starts at an address that this is the leaf of, if one does, and its span's kind is not 0.
    #[inline(always)]
    pub(crate) fn plain(&self, address: usize) -> Option<Plain> {
        let entry = self.entry(address).load(Ordering::Relaxed).addr();
        let kind = entry & KIND;
        // A span is at most 64 KiB long.
        let offset = (address as u16).wrapping_sub((entry >> START) as u16);
        size::is_slot_start(size::reciprocal_of(kind), u32::from(offset)).then_some(Plain { kind })
    }
}

/// The map.
#[derive(Debug)]
pub struct PageMap {
    root: [AtomicPtr<Leaf>; ROOT],
    spare: AtomicPtr<Leaf>,
}

impl PageMap {
    /// An empty map: all zero.
    pub const fn new() -> Self {
        Self {
            root: [const { AtomicPtr::new(null_mut()) }; ROOT],
            spare: AtomicPtr::new(null_mut()),
        }
    }

    /// The leaf of an address, which is never unmapped or replaced.
    #[inline(always)]
    pub(crate) fn leaf(&self, address: usize) -> Option<&Leaf> {
        let leaf = self.root.get(address >> 32)?.load(Ordering::Relaxed);
        // SAFETY: a non-null root entry is a zero-initialised leaf that is never unmapped; the root was stored with
        // release order, and whoever holds an address in its range got it after that.
        unsafe { leaf.as_ref() }
    }

    #[inline(always)]
    fn entry(&self, address: usize) -> Option<&AtomicPtr<Span>> {
        Some(self.leaf(address)?.entry(address))
    }

    /// The descriptor at an address, or null.
    #[inline(always)]
    pub fn get(&self, address: usize) -> *mut Span {
        match self.entry(address) {
            Some(entry) => entry.load(Ordering::Relaxed).map_addr(|entry| entry & DESCRIPTOR),
            None => null_mut(),
        }
    }

    /// Sets the entry of one granule; [`PageMap::cover`] was called for it.
    pub fn set(&self, address: usize, span: *mut Span) {
        if let Some(entry) = self.entry(address) {
            entry.store(span, Ordering::Release);
        }
    }

    /// Sets the entries of `granules` granules from `address` on.
    pub fn set_range(&self, address: usize, granules: usize, span: *mut Span) {
        for index in 0..granules {
            self.set(address + index * GRANULE, span);
        }
    }

    /// Sets the entries of a small span, which are of kind 0 unless `plain` and [marked](Span::marked).
    pub fn set_small(&self, span: &Span, plain: bool) {
        let marked = if plain { span.marked() } else { 0 };
        for granule in 0..span.granules() {
            let kind = if marked >> granule & 1 != 0 { span.class() + 1 } else { 0 };
            let entry = (&raw const *span).cast_mut();
            let entry = entry.map_addr(|address| address | kind | span.start() << START);
            self.set(span.start() + granule * GRANULE, entry);
        }
    }

    /// Makes sure that every granule of a range has an entry; `false` if there is no memory for that
    /// or the range is beyond what the map can express.
    pub fn cover<O: Os>(&self, os: &O, meta: &Meta, address: usize, len: usize) -> bool {
        let last = address + (len - 1);
        for index in address >> 32..=last >> 32 {
            let Some(root) = self.root.get(index) else { return false };
            if !root.load(Ordering::Acquire).is_null() {
                continue;
            }
            let leaf = self.take_leaf(os, meta);
            if leaf.is_null() {
                return false;
            }
            self.put_leaf(os, leaf, index << 32);
        }
        true
    }

    /// An unused leaf; null if there is no memory.
    pub(crate) fn take_leaf<O: Os>(&self, os: &O, meta: &Meta) -> *mut Leaf {
        let spare = self.spare.swap(null_mut(), Ordering::Acquire);
        if spare.is_null() { meta.map_table(os, size_of::<Leaf>()).cast() } else { spare }
    }

    /// Uses a leaf for the range of an address, or keeps it as the spare one if that range has a leaf.
    pub(crate) fn put_leaf<O: Os>(&self, os: &O, leaf: *mut Leaf, address: usize) {
        let used = self.root.get(address >> 32).is_some_and(|root| {
            root.compare_exchange(null_mut(), leaf, Ordering::AcqRel, Ordering::Acquire).is_ok()
        });
        if used {
            return;
        }
        let spare =
            self.spare.compare_exchange(null_mut(), leaf, Ordering::Release, Ordering::Relaxed);
        if spare.is_err() {
            // SAFETY: the leaf came from `take_leaf`, which mapped it with this size, and was not published.
            unsafe { os.unmap(leaf.cast(), size_of::<Leaf>()) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::size::SIZES;

    /// A map of one leaf, at the lowest 4 GiB.
    fn map() -> Box<PageMap> {
        // SAFETY: null pointers are zero.
        let (map, leaf) = unsafe {
            (Box::<PageMap>::new_zeroed().assume_init(), Box::<Leaf>::new_zeroed().assume_init())
        };
        map.root[0].store(Box::leak(leaf), Ordering::Release);
        map
    }

    #[test]
    fn an_entry_tells_where_slots_start_and_of_what_class_unless_it_is_told_not_to() {
        let map = map();
        let leaf = map.leaf(0).expect("made above");
        for (class, &size) in SIZES.iter().enumerate() {
            let span = Span::new();
            // Such a span begins anywhere in 64 KiB.
            let start = 0x7_0000 + (class % 16) * GRANULE;
            let granules = size::geometry(class, GRANULE).granules;
            span.set_start(start);
            span.set_granules(granules);
            span.become_small(class, 1, 0);
            span.set_marked(u16::MAX);
            map.set_small(&span, true);
            for address in start..start + granules * GRANULE {
                let starts = (address - start).is_multiple_of(size as usize);
                let found = leaf.plain(address).map(Plain::class);
                assert_eq!(found, starts.then_some(class), "{address:#x}");
            }
            for plain in [true, false] {
                map.set_small(&span, plain);
                for granule in 0..granules {
                    let address = start + granule * GRANULE;
                    assert_eq!(map.get(address).cast_const(), &raw const span);
                    assert!(plain || leaf.plain(address).is_none(), "{address:#x}");
                }
            }
            map.set_range(start, granules, null_mut());
            assert!(map.get(start).is_null() && leaf.plain(start).is_none());
        }
        // SAFETY: leaked by `map`.
        drop(unsafe { Box::from_raw(map.root[0].load(Ordering::Relaxed)) });
    }
}

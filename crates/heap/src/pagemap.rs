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

use core::ptr::null_mut;
use core::sync::atomic::{AtomicPtr, Ordering};

use crate::meta::Meta;
use crate::os::Os;
use crate::size::GRANULE;
use crate::span::Span;

const ROOT: usize = 1 << 16;
const LEAF: usize = 1 << 20;
const SHIFT: u32 = GRANULE.trailing_zeros();

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

    /// The descriptor at an address that this is the leaf of, or null.
    #[inline(always)]
    pub(crate) fn get(&self, address: usize) -> *mut Span {
        self.entry(address).load(Ordering::Relaxed)
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
            Some(entry) => entry.load(Ordering::Relaxed),
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

//! A growable array on memory from [`Os::map`]: the engine's only allocator.

use core::marker::PhantomData;
use core::ops::{Deref, DerefMut};
use core::ptr;

use crate::os::Os;

/// A growable array of plain values.
///
/// Invariant: `start` is null and `capacity` 0, or `start` is a mapping from `Os` with room for
/// `capacity` values, of which the first `len` are initialised. It belongs to this table alone.
pub(crate) struct Table<T: Copy> {
    start: *mut T,
    len: usize,
    capacity: usize,
    values: PhantomData<T>,
}

// SAFETY: a table owns its mapping as a `Vec` does, so it may move to another thread if its values may.
unsafe impl<T: Copy + Send> Send for Table<T> {}

impl<T: Copy> Default for Table<T> {
    fn default() -> Self {
        Self::new()
    }
}

impl<T: Copy> Table<T> {
    /// An empty table, which holds no memory.
    pub(crate) const fn new() -> Self {
        Self { start: ptr::null_mut(), len: 0, capacity: 0, values: PhantomData }
    }

    /// Makes room for `capacity` values; `false` (and nothing changed) if there is no memory.
    pub(crate) fn reserve(&mut self, os: &impl Os, capacity: usize) -> bool {
        if capacity <= self.capacity {
            return true;
        }
        let page = os.page_size();
        let Some(bytes) = capacity.max(2 * self.capacity).checked_mul(size_of::<T>()) else {
            return false;
        };
        let bytes = bytes.next_multiple_of(page);
        let start = if self.start.is_null() {
            os.map(bytes, page)
        } else {
            let old = self.bytes(page);
            // SAFETY: the mapping is a whole one from `os` of `old` bytes (the struct's invariant), and on
            // success only the address returned is kept.
            unsafe { os.remap(self.start.cast(), old, bytes) }
        };
        if start.is_null() {
            return false;
        }
        self.start = start.cast();
        self.capacity = bytes / size_of::<T>();
        true
    }

    /// Adds a value at the end; `false` if there is no memory.
    pub(crate) fn push(&mut self, os: &impl Os, value: T) -> bool {
        if self.len == self.capacity && !self.reserve(os, self.len + 1) {
            return false;
        }
        // SAFETY: `len < capacity`, so the place lies in the mapping; it is page aligned, which is
        // enough for every `T` of the engine: words and structs of words.
        unsafe { self.start.add(self.len).write(value) };
        self.len += 1;
        true
    }

    /// Makes the table `len` values long, new ones being `value`; `false` if there is no memory.
    pub(crate) fn resize(&mut self, os: &impl Os, len: usize, value: T) -> bool {
        if !self.reserve(os, len) {
            return false;
        }
        for index in self.len..len {
            // SAFETY: `index < len <= capacity`, as in `push`.
            unsafe { self.start.add(index).write(value) };
        }
        self.len = len;
        true
    }

    /// Forgets the values from `len` on and keeps the memory.
    pub(crate) fn truncate(&mut self, len: usize) {
        self.len = self.len.min(len);
    }

    /// Forgets the values and keeps the memory.
    pub(crate) fn clear(&mut self) {
        self.len = 0;
    }

    /// Whether it holds much more memory than so many values need.
    pub(crate) fn is_sparse(&self, len: usize) -> bool {
        self.capacity * size_of::<T>() >= 32 << 10 && len < self.capacity / 8
    }

    /// Gives the memory back.
    pub(crate) fn release(&mut self, os: &impl Os) {
        if !self.start.is_null() {
            // SAFETY: the mapping belongs to this table, which forgets it here.
            unsafe { os.unmap(self.start.cast(), self.bytes(os.page_size())) };
        }
        *self = Self::new();
    }

    fn bytes(&self, page: usize) -> usize {
        (self.capacity * size_of::<T>()).next_multiple_of(page)
    }
}

impl<T: Copy> Deref for Table<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        if self.len == 0 {
            return &[];
        }
        // SAFETY: the first `len` values are initialised, and the borrow of `self` keeps them in place.
        unsafe { core::slice::from_raw_parts(self.start, self.len) }
    }
}

impl<T: Copy> DerefMut for Table<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        if self.len == 0 {
            return &mut [];
        }
        // SAFETY: as `deref`; the borrow is exclusive.
        unsafe { core::slice::from_raw_parts_mut(self.start, self.len) }
    }
}

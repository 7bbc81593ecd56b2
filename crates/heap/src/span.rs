//! Spans as the compactor sees them: references that never dangle, and views taken under a lock.

use core::ptr::NonNull;

/// The out-of-band descriptor of a run of pages.
#[derive(Debug)]
#[repr(C, align(128))]
pub(crate) struct Span {
    start: usize,
}

/// A reference to a span's descriptor. Descriptors are never unmapped, so a reference is always
/// readable; whether it still means the same span is what a view's generation tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SpanRef(pub(crate) NonNull<Span>);

// SAFETY: a `SpanRef` is an address that is always readable; every access through it goes through
// a lock or an atomic.
unsafe impl Send for SpanRef {}
// SAFETY: as for `Send`.
unsafe impl Sync for SpanRef {}

/// What a small-object span looked like at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SpanView {
    /// First byte of the span, a multiple of the page size.
    pub start: *mut u8,
    /// Size class.
    pub class: usize,
    /// Bytes a slot.
    pub slot_size: u32,
    /// Slots in the span, at most 256; slot `i` begins at `start + i * slot_size`.
    pub slots: u16,
    /// Whole pages of the operating system in the span, at most 16. Zero if the span shares a page with
    /// other spans (pages larger than 4 KiB only): then nothing of it can be blocked.
    pub pages: u8,
    /// A bit a slot: allocated, or in some thread's cache.
    pub live: [u64; 4],
    /// A bit a slot: may not be handed out.
    pub blocked: [u64; 4],
    /// A bit a page: may hold memory (a clear bit: never touched, or given back; reads as zero).
    pub resident: u16,
    /// Changes whenever the descriptor comes to mean another span.
    pub generation: u32,
}

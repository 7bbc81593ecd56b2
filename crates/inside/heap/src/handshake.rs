//! The compactor's side of the heap: spans by reference, blocked and unblocked under their class's lock.
//!
//! Properties: a slot that overlaps a blocked page is not handed out; a span with blocked pages stays,
//! empty or not, and keeps its generation; a free of an object on a blocked page writes nothing to it.

use core::ops::Range;
use core::ptr::null_mut;

use crate::bits::{self, Bits};
use crate::central::{self, Central};
use crate::heap::Heap;
use crate::os::Os;
use crate::size;
use crate::span::{Span, SpanRef, SpanView, State};
use crate::sync::{AtomicU64, Ordering};

impl<O: Os> Heap<O> {
    /// Number of span descriptors ever made; only grows.
    pub fn span_count(&self) -> usize {
        self.meta.count()
    }

    /// The descriptor of this index, if it was made.
    pub fn span_at(&self, index: usize) -> Option<SpanRef> {
        self.meta.at(index)
    }

    /// The class of a span, if it is a small one at the moment.
    fn class_of(&self, span: SpanRef) -> Option<(usize, &Central)> {
        if span.get().state() != State::Small {
            return None;
        }
        let class = span.get().class();
        Some((class, self.centrals.get(class)?))
    }

    /// Runs `f`, which takes the class's lock for the compactor.
    fn compacting<T>(&self, central: &Central, f: impl FnOnce() -> T) -> T {
        self.compacting.store((&raw const *central.lock()).cast_mut(), Ordering::Relaxed);
        let done = f();
        self.compacting.store(null_mut(), Ordering::Relaxed);
        done
    }

    /// Whether the compactor holds the lock that this is the word of, or is about to take it: who waits for it waits
    /// because of compaction.
    pub fn compacts_under(&self, word: &AtomicU64) -> bool {
        // SAFETY: null, or the lock of a class of this heap.
        unsafe { self.compacting.load(Ordering::Relaxed).as_ref() }
            .is_some_and(|lock| lock.is(word))
    }

    /// A small-object span as it is now; `None` if the descriptor is not one at the moment.
    pub fn inspect(&self, span: SpanRef) -> Option<SpanView> {
        let (class, central) = self.class_of(span)?;
        let page = self.page();
        let view = |this: &Span| SpanView {
            start: core::ptr::with_exposed_provenance_mut(this.start()),
            class,
            slot_size: this.slot_size(),
            slots: this.slots(),
            // Looked up only where spans may share a page: this is asked of every span, and often.
            pages: if page == size::GRANULE {
                this.granules()
            } else {
                size::geometry(class, page).pages
            } as u8,
            live: this.live_bits(),
            blocked: this.blocked_bits(),
            resident: this.resident(),
            generation: this.generation(),
        };
        self.compacting(central, || central.with(&self.os, class, span, None, view))
    }

    /// Takes whole pages of a span for the compactor: no slot that overlaps them is handed out until [`Heap::unblock`].
    /// Returns the span's live bits at that moment; `None` if the span has changed its meaning since `generation`.
    pub fn block(&self, span: SpanRef, generation: u32, pages: Range<u8>) -> Option<[u64; 4]> {
        let (class, central) = self.class_of(span)?;
        self.compacting(central, || {
            // Objects on pages that compaction has in hand are freed with a look at the span.
            let first = |this: &Span| self.map.set_small(this, false);
            central.block(&self.os, class, span, generation, pages, self.page(), first)
        })
    }

    /// Hands blocked pages out again; they are ordinary memory now. A span that is empty then goes back to the page
    /// heap. `false` if the span has changed its meaning since `generation`.
    pub fn unblock(&self, span: SpanRef, generation: u32, pages: Range<u8>) -> bool {
        let Some((class, central)) = self.class_of(span) else { return false };
        let empty = self.compacting(central, || {
            let last = |this: &Span| self.map.set_small(this, self.frees_plainly());
            central.unblock(&self.os, class, span, generation, pages, self.page(), last)
        });
        let Some(empty) = empty else { return false };
        self.free_spans(empty);
        true
    }

    /// The live bits of a span, as [`Heap::inspect`], without the rest.
    pub fn live(&self, span: SpanRef, generation: u32) -> Option<[u64; 4]> {
        let (class, central) = self.class_of(span)?;
        central.with(&self.os, class, span, Some(generation), Span::live_bits)
    }

    /// Notes that blocked pages of a span (a bit each) were given back.
    pub fn set_absent(&self, span: SpanRef, generation: u32, pages: u16) {
        let Some((class, central)) = self.class_of(span) else { return };
        central.with(&self.os, class, span, Some(generation), |this| {
            this.set_resident(this.resident() & !pages);
        });
    }

    /// Gives the wholly free, resident, unblocked pages of a span back (blocks, decommits, unblocks).
    /// Returns the bytes given back.
    pub fn release_pages(&self, span: SpanRef, generation: u32) -> usize {
        let Some(view) = self.inspect(span) else { return 0 };
        if view.generation != generation {
            return 0;
        }
        let (page, size, slots) = (self.page(), view.slot_size as usize, usize::from(view.slots));
        let taken: Bits = core::array::from_fn(|word| view.live[word] | view.blocked[word]);
        let free = |bits: &Bits, index: u8| {
            let at = usize::from(index);
            let on = bits::slots_on(at..at + 1, page, size, slots);
            (0..4).all(|word| on[word] & bits[word] == 0)
        };
        let mut given = 0;
        for index in 0..view.pages {
            if view.resident >> index & 1 == 0 || !free(&taken, index) {
                continue;
            }
            let pages = index..index + 1;
            let Some(live) = self.block(span, generation, pages.clone()) else { break };
            if free(&live, index) {
                // SAFETY: a whole page of a span, and no live slot is on it, nor can be while it is blocked.
                unsafe {
                    self.os.decommit(view.start.wrapping_add(usize::from(index) * page), page)
                };
                self.set_absent(span, generation, central::page_bits(&pages));
                given += page;
            }
            self.unblock(span, generation, pages);
        }
        given
    }
}

//! The heap as the compactor sees it.

use core::ops::Range;

use pagemill_heap::SpanRef;
use pagemill_heap::compact::{Bits, SpanView, Spans};
use pagemill_heap::os::Os;

use crate::heap::HEAP;

/// The one heap's spans.
#[derive(Clone, Copy, Debug)]
pub(crate) struct HeapSpans;

// SAFETY: the heap keeps what the trait asks for: chunks are private anonymous memory, and while pages of a span are
// blocked, no slot that overlaps them is handed out and the span is neither given back nor given another meaning
// (`Heap::block`, `Heap::unblock`). A slot whose live bit is clear is touched by no thread.
unsafe impl Spans for HeapSpans {
    type Ref = SpanRef;

    fn count(&self) -> usize {
        HEAP.span_count()
    }

    fn at(&self, index: usize) -> Option<SpanRef> {
        HEAP.span_at(index)
    }

    fn inspect(&self, span: SpanRef) -> Option<SpanView> {
        let view = HEAP.inspect(span)?;
        (view.pages > 0).then(|| SpanView {
            start: view.start.expose_provenance(),
            class: view.class as u16,
            slot_size: view.slot_size,
            slots: view.slots,
            pages: view.pages,
            live: view.live,
            blocked: view.blocked,
            resident: view.resident,
            generation: view.generation,
        })
    }

    fn block(&self, span: SpanRef, generation: u32, pages: Range<u8>) -> Option<Bits> {
        HEAP.block(span, generation, pages)
    }

    fn unblock(&self, span: SpanRef, generation: u32, pages: Range<u8>) {
        HEAP.unblock(span, generation, pages);
    }

    fn set_absent(&self, span: SpanRef, generation: u32, pages: u16) {
        HEAP.set_absent(span, generation, pages);
    }

    fn purge(&self, now_ns: u64, all: bool) -> usize {
        // The heap ages free pages by its own, coarser clock.
        let _ = now_ns;
        HEAP.purge(if all { u64::MAX } else { HEAP.os().now_ns() })
    }

    fn beside(&self) -> usize {
        HEAP.beside_spans()
    }
}

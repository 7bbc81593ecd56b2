//! The state as JSON: what the screen shows, as numbers.

use pagemill_model::{Bytes, Nanos};
use serde_json::{Value, json};

use crate::draw::sentences::{Sentence, says};
use crate::feed::Feed;
use crate::state::State;
use crate::state::faults::MINUTE;
use crate::state::heat::Region;
use crate::state::memory::memory;
use crate::terminal::Surroundings;

/// One frame.
pub fn frame(state: &State, feed: &dyn Feed, around: &Surroundings) -> Value {
    let (meta, condition) = (feed.meta(), feed.condition());
    let sample = state.memory.last.as_ref();
    let bytes = |value: Option<Bytes>| value.map(|bytes| bytes.0);
    let children = state.memory.children;
    let lacks = feed.lacks().into_iter();
    json!({
        "pid": meta.pid,
        "comm": meta.comm,
        "time_ns": state.now.0,
        "seconds": state.length().0 as f64 / 1e9,
        "condition": condition.words,
        "over": condition.over,
        "says": says(state, meta).map(|Sentence { text, .. }| text).collect::<Vec<_>>(),
        "memory": {
            "bytes": sample.and_then(memory),
            "anonymous_bytes": sample.and_then(|sample| bytes(sample.pss_anon)),
            "shared_bytes": sample.and_then(|sample| bytes(sample.pss_shmem)),
            "swap_bytes": sample.and_then(|sample| bytes(sample.swap)),
            "lazy_free_bytes": sample.and_then(|sample| bytes(sample.lazy_free)),
            "children": children.map(|children| children.processes),
            "children_bytes": children.map(|children| children.memory.0),
            "live_bytes": sample.and_then(|sample| bytes(sample.live)),
            "heap_bytes": sample.and_then(|sample| bytes(sample.footprint)),
        },
        "heat": heat(state),
        "faults": meta.faults.is_some().then(|| faults(state)),
        "machine": {
            "unusable": state.machine.index(),
            "free_pages": state.machine.free_pages(),
            "huge_blocks": state.machine.huge_blocks(),
            "pressure": around.pressure.filter(|_| !condition.over),
            "tiers": around.tiers,
        },
        "not_measured": lacks.map(|lack| json!({ "what": lack.what, "why": lack.why })).collect::<Vec<_>>(),
    })
}

/// Memory by last touch: the window that the kernel tells of, and each region.
fn heat(state: &State) -> Value {
    let region = |region: Region| {
        json!({
            "name": region.name,
            "bytes": region.bytes,
            "warm_bytes": region.warm,
            "touched_ns": region.touched.map(|time| time.0),
        })
    };
    json!({
        "window_ns": state.heat.window().map(|window| window.0),
        "regions": state.heat.regions().into_iter().map(region).collect::<Vec<_>>(),
    })
}

/// Faults of the last minute.
fn faults(state: &State) -> Value {
    let began = state.began.unwrap_or(state.now);
    let recent = state.faults.recent(MINUTE, began, state.now);
    let quantile = |share| recent.times.quantile(share).map(|Nanos(time)| time);
    let longest = state.faults.longest.as_ref();
    json!({
        "count": recent.count,
        "seconds": recent.seconds,
        "p50_ns": quantile(0.5),
        "p99_ns": quantile(0.99),
        "max_ns": recent.longest().map(|time| time.0),
        "stalls": state.faults.stalls(MINUTE, state.now).count(),
        "bursts": state.faults.bursts(state.now),
        "longest_ns": longest.map(|stall| stall.latency.0),
        "longest_in": longest.map(|stall| &stall.place),
    })
}

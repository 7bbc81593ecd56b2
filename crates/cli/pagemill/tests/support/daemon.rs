//! Recordings as the placement daemon writes them, on machines without two memory nodes.

use std::path::Path;

use pagemill_model::recording::{Meta, Writer};
use pagemill_model::{Bytes, Event, Nanos, Policy as _, TierView};
use pagemill_policy::tier::live::Live;

/// What a daemon would have recorded: 16 pages, those of the second half hot and then not.
pub fn record(path: &Path, policy: &str, spoil: bool) {
    record_with(path, policy, spoil, Meta::default());
}

pub fn record_with(path: &Path, policy: &str, spoil: bool, meta: Meta) {
    let mut live = Live::named(policy).unwrap();
    let mut writer = Writer::create(path, meta, false, None).unwrap();
    for quantum in 0..20_u64 {
        let hot = |page: u64| (page >= 8) == (quantum < 10);
        let mut view = TierView {
            time: Nanos(quantum * 1_000_000_000),
            quantum: Some(quantum),
            length: Some(Nanos(1_000_000_000)),
            latency: Some(vec![100_000 + quantum * 20_000, 140_000]),
            page_size: Some(Bytes(2 << 20)),
            room: Some(vec![0, 4]),
            limit: Some(4),
            page: Some((0..16).collect()),
            page_pid: Some(vec![7; 16]),
            page_address: Some((0..16).map(|page| page << 21).collect()),
            page_tier: Some((0..16).map(|page| u64::from(page >= 8)).collect()),
            page_samples: Some((0..16).map(|page| if hot(page) { 9 } else { 0 }).collect()),
            ..TierView::default()
        };
        let mut decision = live.decide(&view);
        if spoil && quantum == 5 {
            view.limit = Some(0);
            decision.why = Some("no reason".into());
        }
        writer.event(&Event::TierView(Box::new(view))).unwrap();
        writer.event(&Event::TierDecision(Box::new(decision))).unwrap();
    }
    writer.finish(Nanos(20_000_000_000)).unwrap();
}

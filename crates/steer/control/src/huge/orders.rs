//! What the libraries are told, so that decisions come about, and what they have counted.

use pagemill_policy::huge::{Action, Moment, Policy, View};
use pagemill_prefault::board::{Order, Process, ProcessWord};
use serde_json::{Value, json};

/// What is to be done about a region of this view, before anybody has looked at it.
pub fn first_order(policy: &dyn Policy, view: impl Fn(Moment) -> View) -> Order {
    let mut orders = policy
        .mechanism()
        .growth
        .iter()
        .map(|&moment| order_for(policy.decide(&view(moment)).action));
    orders.find(|order| *order != Order::Nothing).unwrap_or_default()
}

/// What a library is told to do so that a decision about a region that grows comes about.
pub fn order_for(action: Action) -> Order {
    match action {
        Action::Ahead2m => Order::Huge,
        Action::Pool => Order::Pool,
        Action::Ahead4k => Order::Base,
        Action::Ahead64k => Order::Medium,
        Action::Huge | Action::Fault2m => Order::Fault,
        Action::Fault64k => Order::FaultMedium,
        Action::Base | Action::Collapse | Action::Demote | Action::Prezero | Action::Defragment => {
            Order::Nothing
        }
    }
}

/// What a library has counted.
pub fn counters(process: Process<'_>) -> Value {
    let get = |word| process.get(word);
    json!({
        "pid": get(ProcessWord::Pid),
        "degraded": get(ProcessWord::Degraded),
        "resident_bytes": get(ProcessWord::Resident),
        "helper_cpu_ns": get(ProcessWord::HelperNs),
        "huge_pages": get(ProcessWord::HugePages),
        "base_pages": get(ProcessWord::BasePages),
        "late": get(ProcessWord::Late),
        "refused": get(ProcessWord::Refused),
        "huge_ns": get(ProcessWord::HugeNs),
        "huge_most_ns": get(ProcessWord::HugeMostNs),
        "base_512_ns": get(ProcessWord::BaseNs),
        "collapsed": get(ProcessWord::Collapsed),
        "untouched_bytes": get(ProcessWord::Untouched),
        "rounds": get(ProcessWord::Rounds),
        "medium_chunks": get(ProcessWord::MediumChunks),
        "medium_ns": get(ProcessWord::MediumNs),
        "seeds": get(ProcessWord::Heads),
    })
}

//! The placement daemon's parts: what it tracks, how it knows the tiers' latencies, how it acts, and what
//! it says about itself. The policies are [`pagemill_policy::tier::live`]'s.
//!
//! ```text
//!  pages (source, move_pages) ┐
//!  latency (counters, probe, ─┼─► TierView ─► policy ─► TierDecision ─► Log<RateLimit<Guard<Live>>> ─► TierOutcome
//!           replay file)      │       │                     │                                           │
//!  room (nodes, limits) ──────┘       └──────────► recording, status ◄──────────────────────────────────┘
//! ```

pub mod access_sources;
pub mod actuators;
pub mod curve;
pub mod daemon;
pub mod doctor;
pub mod latency;
pub mod overview;
pub mod pages;
pub mod probe;
pub mod replay;
pub mod status;

use anyhow::{Result, bail};
use pagemill_kernel::nodes::Node;

/// The nodes that make up the two tiers: default first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tiers(pub [u32; 2]);

impl Tiers {
    /// The tiers of a machine: those that were named, or else the one pair that there is. The default
    /// tier is the one that a processor reaches sooner: by the firmware's latency, else by the
    /// kernel's tier, else the one that has processors.
    ///
    /// # Errors
    /// A named node is not there, or there is no one pair.
    pub fn choose(nodes: &[Node], named: [Option<u32>; 2]) -> Result<Self> {
        let list = || nodes.iter().map(|node| node.id.to_string()).collect::<Vec<_>>().join(", ");
        for (flag, node) in ["--default-node", "--alternate-node"].into_iter().zip(named) {
            if let Some(node) = node.filter(|node| !nodes.iter().any(|known| known.id == *node)) {
                bail!("{flag} {node}: there is no such memory node; valid: {}", list());
            }
        }
        let speed = |node: &&Node| {
            let latency = node.access.read_latency.unwrap_or(u64::MAX);
            (latency, node.tier.unwrap_or(u32::MAX), node.cpus.is_empty(), node.id)
        };
        let mut order: Vec<&Node> = nodes.iter().collect();
        order.sort_by_key(speed);
        let other = |than: u32| order.iter().map(|node| node.id).filter(move |id| *id != than);
        match (named, order.as_slice()) {
            ([Some(default), Some(alternate)], _) if default == alternate => {
                bail!("node {default} cannot be both tiers; valid: two of {}", list())
            }
            ([Some(default), Some(alternate)], _) => Ok(Self([default, alternate])),
            ([Some(default), None], [_, _]) => {
                Ok(Self([default, other(default).next().unwrap_or(default)]))
            }
            ([None, Some(alternate)], [_, _]) => {
                Ok(Self([other(alternate).next().unwrap_or(alternate), alternate]))
            }
            ([None, None], [default, alternate]) => Ok(Self([default.id, alternate.id])),
            (_, [] | [_]) => bail!("this machine has one memory node; two are needed"),
            _ => bail!(
                "this machine has {} memory nodes; say which two: --default-node and --alternate-node, of {}",
                nodes.len(),
                list()
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    pub(super) fn node(id: u32, cpus: &[u32], latency: Option<u64>) -> Node {
        Node {
            id,
            cpus: cpus.to_vec(),
            total: 1 << 30,
            free: 1 << 29,
            distances: BTreeMap::new(),
            access: pagemill_kernel::nodes::Access { read_latency: latency, read_bandwidth: None },
            tier: None,
            counters: BTreeMap::new(),
        }
    }

    #[test]
    fn the_tier_that_answers_sooner_is_the_default_one() {
        let nodes = [node(0, &[], Some(135)), node(1, &[0, 1], Some(70))];
        assert_eq!(Tiers::choose(&nodes, [None, None]).unwrap(), Tiers([1, 0]));
        // Without the firmware's word, the one with processors.
        let nodes = [node(0, &[], None), node(1, &[0, 1], None)];
        assert_eq!(Tiers::choose(&nodes, [None, None]).unwrap(), Tiers([1, 0]));
        assert_eq!(Tiers::choose(&nodes, [Some(0), None]).unwrap(), Tiers([0, 1]));
    }

    #[test]
    fn what_cannot_be_two_tiers_is_refused_with_the_valid_nodes() {
        let nodes = [node(0, &[0], None), node(1, &[], None), node(2, &[], None)];
        let refused = |named| Tiers::choose(&nodes, named).unwrap_err().to_string();
        assert!(refused([None, None]).contains("say which two"));
        assert!(refused([Some(7), None]).contains("valid: 0, 1, 2"));
        assert!(refused([Some(1), Some(1)]).contains("cannot be both"));
        assert!(Tiers::choose(&nodes[..1], [None, None]).is_err());
    }
}

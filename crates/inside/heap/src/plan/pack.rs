//! Grouping in slices: the same groups, however the work is cut.
//!
//! First fit decreasing over thousands of bitmaps takes milliseconds, and whoever plans holds what a thread that
//! wants to fork waits for. So the work is counted, in steps of about ten nanoseconds (a probe, four words of
//! a bitmap), and what is done so far is kept between two slices: by population, then into groups.
//!
//! Properties (tested): the outcome does not depend on how the work is cut; a slice exceeds its
//! work by what one bitmap takes.

use super::{Limits, NONE, Scratch, disjoint, drop_single, join, population};

/// Groups `bits` and returns the number of groups. `group[i]` becomes the group of unit `i`, or
/// [`NONE`] if the unit is empty or found no partner.
///
/// # Panics
/// If a slice of the scratch or `group` is shorter than `bits`.
pub fn pack<const W: usize>(
    bits: &[[u64; W]],
    limits: Limits,
    scratch: Scratch<'_, W>,
    group: &mut [u32],
) -> u32 {
    let mut scratch = scratch;
    let mut packing = Packing::new();
    loop {
        if let Some(groups) = packing.step(bits, limits, &mut scratch, group, u32::MAX) {
            return groups;
        }
    }
}

/// Ranks of bitmaps: by falling population, the empty ones last.
const RANKS: usize = 258;

/// What comes next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// Bitmaps of each rank are counted.
    Count,
    /// They are put in order.
    Order,
    /// They are put into groups.
    Group,
}

/// Where grouping left off.
#[derive(Clone, Debug)]
pub struct Packing {
    stage: Stage,
    /// The bitmap, or the place in the order, that comes next.
    next: usize,
    /// How many bitmaps are not empty.
    occupied: usize,
    /// Bitmaps of each rank, then where the next one of it goes.
    starts: [u32; RANKS],
    groups: u32,
    /// Groups before this one are full.
    first_open: u32,
    /// Groups of dense units that have room, which stand at the front of the order where units are done with, and how
    /// far from the last of them the next unit begins.
    dense: u32,
    turn: u32,
}

impl Default for Packing {
    fn default() -> Self {
        Self::new()
    }
}

/// The place of a bitmap in the order: populations of more than 256 by as many steps as make 256.
fn rank<const W: usize>(unit: &[u64; W]) -> usize {
    257 - population(unit).div_ceil((W as u32).div_ceil(4)) as usize
}

impl Packing {
    /// Nothing done yet.
    pub const fn new() -> Self {
        Self {
            stage: Stage::Count,
            next: 0,
            occupied: 0,
            starts: [0; RANKS],
            groups: 0,
            first_open: 0,
            dense: 0,
            turn: 0,
        }
    }

    /// Elements of `unions` that the next slice with so much work may need at most, of `units` bitmaps of `W` words.
    pub fn unions_needed<const W: usize>(&self, units: usize, work: u32) -> usize {
        let fresh = (work as usize).div_ceil(cost::<W>() as usize);
        units.min((self.groups as usize).saturating_add(fresh))
    }

    /// Goes on for about `work` steps. Returns the number of groups once all is done: then `group[i]` is the group
    /// of unit `i`, or [`NONE`] if the unit is empty or found no partner. Every call of one
    /// grouping is given the same bitmaps and limits, and what the last one left in the scratch and in `group`.
    ///
    /// # Panics
    /// If `unions` has fewer elements than [`Packing::unions_needed`] says, or another slice of the scratch or `group`
    /// is shorter than `bits`.
    pub fn step<const W: usize>(
        &mut self,
        bits: &[[u64; W]],
        limits: Limits,
        scratch: &mut Scratch<'_, W>,
        group: &mut [u32],
        work: u32,
    ) -> Option<u32> {
        let mut left = work;
        while left > 0 {
            let spent = match self.stage {
                Stage::Count => self.count(bits),
                Stage::Order => self.order(bits, scratch.order, group),
                Stage::Group if self.next == self.occupied => {
                    return Some(drop_single(group, bits.len(), scratch.sizes, self.groups));
                }
                Stage::Group => self.group(bits, limits, scratch, group),
            };
            left = left.saturating_sub(spent);
        }
        None
    }

    fn enter(&mut self, stage: Stage) {
        self.stage = stage;
        self.next = 0;
    }

    /// Counts one bitmap; returns the steps that it took.
    fn count<const W: usize>(&mut self, bits: &[[u64; W]]) -> u32 {
        if let Some(unit) = bits.get(self.next) {
            self.starts[rank(unit)] += 1;
            self.next += 1;
        } else {
            self.occupied = bits.len() - self.starts[RANKS - 1] as usize;
            let mut sum = 0;
            for start in &mut self.starts {
                sum += core::mem::replace(start, sum);
            }
            self.enter(Stage::Order);
        }
        cost::<W>()
    }

    /// Puts one bitmap in order (a counting sort, stable); returns the steps that it took.
    fn order<const W: usize>(
        &mut self,
        bits: &[[u64; W]],
        order: &mut [u32],
        group: &mut [u32],
    ) -> u32 {
        if let Some(unit) = bits.get(self.next) {
            let start = &mut self.starts[rank(unit)];
            order[*start as usize] = self.next as u32;
            *start += 1;
            group[self.next] = NONE;
            self.next += 1;
        } else {
            self.enter(Stage::Group);
        }
        cost::<W>()
    }

    /// Puts the next bitmap of the order into the first group that has room; returns the steps that it took.
    fn group<const W: usize>(
        &mut self,
        bits: &[[u64; W]],
        limits: Limits,
        scratch: &mut Scratch<'_, W>,
        group: &mut [u32],
    ) -> u32 {
        let Scratch { order, unions, sizes } = scratch;
        let unit = order[self.next] as usize;
        self.next += 1;
        let is_full = |group: u32, unions: &[[u64; W]], sizes: &[u32]| {
            sizes[group as usize] >= limits.members || unions[group as usize] == [u64::MAX; W]
        };
        while self.first_open < self.groups && is_full(self.first_open, unions, sizes) {
            self.first_open += 1;
        }
        let half = (limits.probes / 2).max(1);
        let hosts = self.dense.min(half);
        let dense = (0..hosts).map(|at| order[self.host(at)]);
        let oldest = self.first_open..self.groups.min(self.first_open.saturating_add(half));
        let newest = (oldest.end.max(self.groups.saturating_sub(half))..self.groups).rev();
        let mut probes = 0;
        let found = dense.chain(oldest).chain(newest).find(|candidate| {
            probes += 1;
            sizes[*candidate as usize] < limits.members
                && disjoint(&unions[*candidate as usize], &bits[unit])
        });
        if found.is_none() && self.dense > 0 {
            self.turn = (self.turn + half) % self.dense;
        }
        let chosen = found.unwrap_or_else(|| {
            unions[self.groups as usize] = [0; W];
            sizes[self.groups as usize] = 0;
            self.groups += 1;
            self.groups - 1
        });
        join(&mut unions[chosen as usize], &bits[unit]);
        sizes[chosen as usize] += 1;
        group[unit] = chosen;
        if let Some((dense, full)) = limits.dense {
            let live = population(&unions[chosen as usize]);
            if found.is_none() && live >= dense {
                order[self.dense as usize] = chosen;
                self.dense += 1;
                self.first_open = self.groups;
            } else if live >= full
                && let Some(at) = (0..hosts).map(|at| self.host(at)).find(|at| order[*at] == chosen)
            {
                order.copy_within(at + 1..self.dense as usize, at);
                self.dense -= 1;
            }
        }
        cost::<W>() + probes
    }

    /// Where in the order the group of a dense unit stands that comes so many probes after the first.
    fn host(&self, after: u32) -> usize {
        (self.dense - 1 - (self.turn + after) % self.dense) as usize
    }
}

/// Steps that going through a bitmap takes.
const fn cost<const W: usize>() -> u32 {
    1 + (W / 4) as u32
}

//! A quantum under TPP: faults, kswapd, and the scanner.

use pagemill_policy::tier::Loads;
use pagemill_policy::tier::drive::FaultDriven;
use pagemill_policy::tier::track::Verdict;

use super::{FAULT_WHEEL, QUANTUM_NS, State};
use crate::pages::Costs;
use crate::workload::GIB;

impl State<'_> {
    pub(super) fn by_faults(
        &mut self,
        driver: &mut FaultDriven,
        now: u32,
        loads: Loads,
        rates: &[f64],
    ) -> (usize, usize) {
        let machine = &self.setup.machine;
        let quantum_ms = QUANTUM_NS / 1e6;
        // Watermarks are parts of the node, of which the workload may use some frames only: low, high and the
        // mark up to which kswapd frees when it makes room for promotions lie one margin apart.
        let node =
            machine.get("kernel.node_gib") * GIB / self.setup.page_bytes() / self.setup.scale;
        let margin = (machine.get("kernel.watermark_part") * node).max(1.0);
        let frames = self.pages.default_frames();
        let mark = |margins: f64| ((margins * margin) as usize).min(frames / 8 * margins as usize);
        let (low, high, promotion) = (mark(1.0), mark(2.0), mark(3.0));
        let plenty = promotion + (machine.get("kernel.plenty_part") * node) as usize;
        driver.observe(loads);
        let (mut promoted, mut demoted, mut handled) = (0, 0, 0_u32);
        let slot = now as usize % FAULT_WHEEL;
        let mut due = std::mem::take(&mut self.faults[slot]);
        // Faults of one quantum come in any order; those stamped first must not take the free frames first.
        for at in (1..due.len()).rev() {
            due.swap(at, self.random.below(at as u64 + 1) as usize);
        }
        for (page, stamped) in due {
            if !self.pages.unstamp(page, stamped) {
                continue;
            }
            handled += 1;
            let latency_ms = f64::from(now - stamped) * quantum_ms;
            let now_ms = (f64::from(now) * quantum_ms) as u64;
            let room = self.pages.free() > plenty;
            match driver.fault(now_ms, self.pages.tier(page), latency_ms, room) {
                Verdict::Promote if self.pages.free() > high => {
                    promoted += usize::from(self.pages.promote(page, now));
                }
                Verdict::Promote => self.kswapd_awake = true,
                Verdict::Demote => demoted += usize::from(self.pages.demote(page)),
                Verdict::Stay => {}
            }
        }
        let copies = (promoted + demoted) as f64;
        self.kswapd_awake |= self.pages.free() < low;
        if self.kswapd_awake {
            let quantum_us = QUANTUM_NS / 1e3 / self.setup.scale;
            self.kswapd_debt += quantum_us;
            let costs = Costs {
                scan_us: machine.get("kernel.kswapd_scan_us"),
                demote_us: machine.get("kernel.kswapd_us"),
                quantum_us,
            };
            let budget = self.kswapd_debt.max(0.0);
            let (aged, spent) =
                self.pages.age(now, promotion + 1, budget, costs, rates, &mut self.random);
            self.kswapd_debt -= spent;
            demoted += aged;
            if self.pages.free() > promotion {
                self.kswapd_awake = false;
                self.kswapd_debt = self.kswapd_debt.min(0.0);
            }
        }
        self.scan(driver, now, rates);
        let spent_us = (f64::from(handled) * machine.get("kernel.fault_us")
            + copies * machine.get("kernel.migrate_us"))
            * self.setup.scale;
        let lost = spent_us / (QUANTUM_NS / 1e3 * self.setup.workload.cores as f64);
        self.lost += 0.1 * (lost - self.lost);
        (promoted, demoted)
    }

    /// Stamps the next chunk of the address space and draws when each stamped page is read next.
    fn scan(&mut self, driver: &FaultDriven, now: u32, rates: &[f64]) {
        let machine = &self.setup.machine;
        let period = (machine.get("kernel.scan_period_ms") * 1e6 / QUANTUM_NS).round().max(1.0);
        if f64::from(now) % period != 0.0 {
            return;
        }
        let chunk = machine.get("kernel.scan_mib") * 1024.0 * 1024.0;
        self.scan_debt += chunk / self.setup.page_bytes() / self.setup.scale;
        while self.scan_debt >= 1.0 {
            self.scan_debt -= 1.0;
            let page = self.cursor as u32;
            self.cursor = (self.cursor + 1) % self.pages.len();
            if self.pages.stamped(page) || !driver.stamps(self.pages.tier(page)) {
                continue;
            }
            let rate = rates[self.pages.class_of(page)];
            let wait = self.random.exponential(1.0 / rate.max(1e-12)).ceil();
            // A page that is not read before the wheel comes round is stamped again then.
            if wait < (FAULT_WHEEL - 1) as f64 {
                self.pages.stamp(page, now);
                self.faults[(now as usize + wait as usize) % FAULT_WHEEL].push((page, now));
            }
        }
    }
}

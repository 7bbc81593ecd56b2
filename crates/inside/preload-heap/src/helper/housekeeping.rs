//! What the helper does each time it wakes: statistics, free pages, triggers, slices of compaction.
//!
//! A pass of compaction is many slices of at most half a millisecond; between two of them a thread that
//! wants to fork gets its turn.

use core::cell::UnsafeCell;
use core::sync::atomic::{AtomicU64, Ordering::Relaxed};

use pagemill_heap::compact::{Compactor, Kernel, Progress};
use pagemill_heap::os::Os;
use pagemill_heap::stats::{Backend, Waits, degraded};
use pagemill_heap::trigger::{self, Decision, Gate, History, Inputs, PassCause, RestTime};
use pagemill_preload_sys::{confine, sys};

use super::state::period_ms;
use super::work;
use crate::heap::HEAP;
use crate::pressure::Pressure;
use crate::spans::HeapSpans;
use crate::stats::pagemill_stats;
use crate::{diagnostics, environment, kernel, settings};

/// The compactor of the one heap.
pub(crate) type Engine<O> = Compactor<'static, HeapSpans, kernel::Linux, O>;

/// Longest slice of compaction.
const SLICE_NS: u64 = 500_000;

/// Least sleep between two slices. A thread that sleeps often is not preempted in the middle of a slice, while pages
/// are frozen and the program may wait for them.
const BREATH_NS: u64 = 150_000;

/// Time between two looks at whether the program still rests while a pass is under way.
const LOOK_NS: u64 = 5_000_000;

/// How many such looks in a row may find it at work before the pass ends.
const LOOKS_AWAY: u32 = 100;

/// Niceness that the helper asks for where it may not be a real-time thread.
const NICENESS: isize = -15;

/// Least time between two looks at merged units that live.
const JUDGE_MS: u32 = 2_000;

/// When a heap that does not change is looked at again: as soon as mappings may cost least, then after twice as long
/// each time, and once a minute.
const LOOK_AGAIN_NS: u64 = 1_000_000_000;
const LOOK_AGAIN_MAX_NS: u64 = 60_000_000_000;

/// Least time between two refreshes of the statistics that look at every span.
const REFRESH_NS: u64 = 1_000_000_000;

/// How long pages may wait for `ksmd` before it is said that nobody runs it.
const PATIENCE_NS: u64 = 5_000_000_000;

/// The engine outlives the thread that made it: a forked child finds its parent's here and goes on with it.
pub(crate) struct Shared<O: Os + 'static>(UnsafeCell<Option<Engine<O>>>);

// SAFETY: only the helper thread touches it, and there is one at a time.
unsafe impl<O: Os> Sync for Shared<O> {}

impl<O: Os> Shared<O> {
    /// None yet.
    pub(crate) const fn new() -> Self {
        Self(UnsafeCell::new(None))
    }

    /// Where it is.
    ///
    /// # Safety
    /// The caller is the helper thread, and asks once.
    #[expect(clippy::mut_from_ref, reason = "the caller promises that it has the only one")]
    pub(crate) unsafe fn place(&self) -> &mut Option<Engine<O>> {
        // SAFETY: the caller's promise.
        unsafe { &mut *self.0.get() }
    }
}

/// What the helper remembers from round to round.
pub(crate) struct Housekeeping<O: Os + 'static> {
    engine: &'static mut Engine<O>,
    backend: Backend,
    pressure: Pressure,
    history: History,
    rest: RestTime,
    /// Live and mapped bytes when they last changed, and since when they are nearly the same.
    seen: (usize, usize),
    same_since: u64,
    rounds_same: u32,
    /// How long the heap will have been the same when it is looked at again.
    look_again_ns: u64,
    /// Until when what could have been saved is reckoned up.
    waited: u64,
    /// When the last pass ended, and the bytes that were saved then.
    ended: u64,
    kept: u64,
    /// What of the merged memory that has died the last pass could not give back, once it was looked at; nothing is
    /// known about it right after a pass.
    dead_left: u64,
    /// CPU time that the last look at every span took.
    looked: u64,
    /// When the statistics that look at every span were refreshed.
    refreshed: u64,
    said: u64,
    /// Since when pages wait for a `ksmd` that rests; `u64::MAX`: none do.
    ksmd_awaited: u64,
}

fn add(counter: &AtomicU64) {
    counter.store(counter.load(Relaxed) + 1, Relaxed);
}

/// What `/sys/kernel/mm/ksm/run` begins with: nothing on a kernel without KSM.
fn ksm_state() -> Option<u8> {
    let mut buffer = [0; 8];
    let len = environment::read_file(c"/sys/kernel/mm/ksm/run", &mut buffer);
    buffer[..len].first().copied()
}

/// Whether `ksmd` runs.
fn ksm_runs() -> bool {
    ksm_state() == Some(b'1')
}

/// Whether `ksmd` runs only because a `run --ksm` has borrowed it, which gives it back when its own program is merged.
fn ksm_is_lent() -> bool {
    let mut buffer = [0; 8];
    environment::read_file(c"/run/pagemill/ksm.journal", &mut buffer) > 0
}

/// Whether the kernel can merge pages at all.
fn has_ksm() -> bool {
    ksm_state().is_some()
}

fn choose_backend() -> Backend {
    match settings::get().backend {
        environment::Backend::None => Backend::None,
        environment::Backend::Remap => Backend::Remap,
        environment::Backend::Ksm => Backend::Ksm,
        environment::Backend::Auto if ksm_runs() && !ksm_is_lent() => Backend::Ksm,
        environment::Backend::Auto => Backend::Remap,
    }
}

impl<O: Os> Housekeeping<O> {
    /// Opens what needs rights, and makes the engine or takes over the parent's: what was merged stays merged and can
    /// be restored. After a copy that no handler saw (`copied`) that engine may be in the middle of a slice: it is left
    /// alone for ever.
    pub(crate) fn new(place: &'static mut Option<Engine<O>>, os: &'static O, copied: bool) -> Self {
        let machine = kernel::Linux::open(os.page_size());
        // Its bursts are short, and whoever waits for frozen pages waits for it. To a real-time thread that waits for
        // the address space the kernel hands it over; from others whoever reads the memory use takes it again and
        // again, for 4 ms. Without the right to either the helper runs as the program does.
        if !confine::filtered() && !sys::set_real_time() {
            let _ = sys::set_niceness(NICENESS);
        }
        let backend = choose_backend();
        pagemill_stats.backend.store(backend as u64, Relaxed);
        if copied {
            *place = None;
        }
        if let Some(inherited) = place.as_mut() {
            inherited.forked(machine);
        } else {
            // SAFETY: the kernel seam works on this process, and the heap leaves blocked pages alone.
            let made = unsafe { Compactor::new(HeapSpans, machine, os, &pagemill_stats, backend) };
            *place = Some(made);
        }
        let engine = place.as_mut().expect("it was there or was made just now");
        engine.settings.judge_ms = JUDGE_MS;
        engine.survey();
        // That ksmd rests now says nothing: the governor of `run --ksm` starts it when there is something to merge.
        if backend == Backend::Ksm && !has_ksm() {
            diagnostics::later(degraded::NO_KSM, 0);
        }
        Self {
            engine,
            backend,
            pressure: Pressure::open(),
            history: History::new(),
            rest: RestTime::default(),
            seen: (0, 0),
            same_since: 0,
            rounds_same: 0,
            look_again_ns: LOOK_AGAIN_NS,
            waited: u64::MAX,
            ended: 0,
            kept: 0,
            dead_left: u64::MAX,
            looked: 0,
            refreshed: 0,
            said: 0,
            ksmd_awaited: u64::MAX,
        }
    }

    /// One round; returns how long to sleep after it.
    pub(crate) fn round(&mut self) -> u64 {
        let began = self.engine.kernel().cpu_ns();
        work::hold();
        let totals = HEAP.totals();
        let now = self.engine.kernel().now_ns();
        let heap = (totals.live, totals.mapped);
        let same = trigger::is_same(self.seen, heap);
        self.rounds_same = if same { self.rounds_same + 1 } else { 0 };
        if self.rounds_same == 0 {
            self.seen = heap;
            self.same_since = now;
            self.look_again_ns = LOOK_AGAIN_NS;
        }
        let given_back = self.purge();
        let request = pagemill_stats.request.load(Relaxed);
        let asked = request != pagemill_stats.request_done.load(Relaxed);
        let idle_ns = self.idle_ns(now);
        // Four rounds after the last change, 0.4 s, nothing changes any more but what a mapping may cost and how long
        // spans are left alone.
        let again = idle_ns >= self.look_again_ns;
        if again {
            self.look_again_ns = idle_ns + idle_ns.min(LOOK_AGAIN_MAX_NS);
        }
        let fresh = self.rounds_same <= 4 || given_back || asked || again;
        if fresh {
            if asked || now >= self.refreshed + REFRESH_NS {
                HEAP.refresh(true);
                self.refreshed = now;
            }
            self.note_idle(idle_ns);
            self.scan(false);
            self.dead_left = self.dead_left.min(self.engine.last_scan().dead_bytes);
        }
        let looked = self.engine.kernel().cpu_ns() - began;
        if fresh {
            self.looked = looked;
        }
        let inputs = self.inputs(now, asked);
        self.history.waited(inputs.gain_bytes, now.saturating_sub(self.waited));
        self.waited = now;
        let decision = self.decide(&inputs);
        work::yield_hold();
        match decision {
            Decision::Run { why, urgent } => self.pass(why, urgent),
            Decision::Gated { by: Gate::TooDear | Gate::CpuShare, .. } => {
                add(&pagemill_stats.gated);
            }
            Decision::Gated { .. } | Decision::Untriggered => {}
        }
        let passes = matches!(decision, Decision::Run { .. });
        let scan = self.engine.last_scan();
        // What an old scan saw was given back already.
        if fresh
            && !passes
            && period_ms() > 0
            && trigger::may_release(
                &inputs,
                scan.releasable_bytes,
                scan.dead_bytes.saturating_sub(self.dead_left),
            )
        {
            self.engine.begin_release();
            self.slices();
            self.dead_left = u64::MAX;
        }
        self.judge_left_over(again && !passes);
        if asked {
            pagemill_stats.request_done.store(request, Relaxed);
        }
        pagemill_stats.live_bytes.store(totals.live as u64, Relaxed);
        self.engine.publish();
        let cpu = self.engine.kernel().cpu_ns();
        pagemill_stats.helper_cpu_ns.store(cpu, Relaxed);
        pagemill_stats.refreshed_ns.store(self.engine.kernel().now_ns(), Relaxed);
        work::release();
        self.await_ksmd();
        self.tell();
        self.sleep_ns(looked)
    }

    /// Tells the engine what may be merged of a heap that has been as it is for so long.
    fn note_idle(&mut self, idle_ns: u64) {
        let settings = &mut self.engine.settings;
        settings.settle_ms = trigger::settle_ms(idle_ns >= trigger::IDLE_NS);
        settings.settled = idle_ns >= trigger::SETTLED_NS;
        settings.again = idle_ns
            >= match self.backend {
                Backend::Remap => trigger::RENEW_NS,
                Backend::Ksm | Backend::None => trigger::AGAIN_NS,
            };
    }

    /// Looks at what `ksmd` has left over if that is `due`: nobody does otherwise while the program rests, for no pass
    /// is due any more.
    fn judge_left_over(&mut self, due: bool) {
        if due && self.engine.waiting_for_ksmd() > 0 {
            self.engine.begin_judging();
            self.slices();
        }
    }

    /// Gives back all free memory that has aged, some at a time; whether there was any.
    fn purge(&self) -> bool {
        let mut any = false;
        while HEAP.purge(HEAP.os().now_ns()) > 0 {
            any = true;
            work::breathe(BREATH_NS);
        }
        any
    }

    /// Forty milliseconds while the heap changes, up to a second while it does not; and at most a two-hundredth of one
    /// CPU for looking at a large heap.
    fn sleep_ns(&self, looked: u64) -> u64 {
        const TICK: u64 = 40_000_000;
        let lazy = TICK * u64::from((1 + self.rounds_same).min(25));
        lazy.max(200 * looked).min(25 * TICK)
    }

    /// For how long the heap has been as it is.
    fn idle_ns(&self, now: u64) -> u64 {
        now.saturating_sub(self.same_since)
    }

    /// How long the heap has been there.
    fn age_ns(&self, now: u64) -> u64 {
        now.saturating_sub(pagemill_stats.started_ns.load(Relaxed))
    }

    /// What the decisions are made from.
    fn inputs(&mut self, now: u64, asked: bool) -> Inputs {
        let scan = self.engine.last_scan();
        let (cgroup_usage, cgroup_limit) = self.pressure.charge();
        let process_ns = sys::clock(sys::CLOCK_PROCESS_CPUTIME_ID);
        let idle_ns = self.idle_ns(now);
        let own_ns = process_ns.saturating_sub(self.engine.kernel().cpu_ns());
        self.rest.observe(now, own_ns, idle_ns);
        Inputs {
            now_ns: now,
            request: asked,
            score: scan.score(),
            idle_ns,
            psi: self.pressure.stalled(now),
            cgroup_usage,
            cgroup_limit,
            gain_bytes: scan.releasable_bytes + scan.mergeable_bytes,
            cost_ns: self.expected_cost(self.engine.settings.offers),
            whole_ns: self.expected_cost(usize::MAX),
            age_ns: self.age_ns(now),
            process_ns,
            rest_ns: self.rest.total_ns(),
            spent_ns: self.spent_ns(),
            share: match self.backend {
                Backend::Ksm => trigger::KSM_SHARE,
                Backend::Remap | Backend::None => trigger::CPU_SHARE,
            },
        }
    }

    /// Decides, and says in the statistics what is waited for.
    fn decide(&mut self, inputs: &Inputs) -> Decision {
        let period = period_ms() * 1_000_000;
        let next = self.ended + period;
        let (decision, (waits, until)) = if self.backend == Backend::None {
            (Decision::Untriggered, (Waits::Unknown, 0))
        } else if (period == 0 || inputs.now_ns < next) && !inputs.request {
            (Decision::Untriggered, (Waits::Period, if period == 0 { 0 } else { next }))
        } else if self.ksmd_merges(inputs) {
            (Decision::Untriggered, (Waits::Pass, 0))
        } else {
            let inputs = self.in_part(inputs);
            let decision = trigger::decide(&inputs, &self.history);
            let again = self.same_since + self.look_again_ns;
            if self.backend == Backend::Ksm && trigger::settles(decision, &inputs) {
                (Decision::Untriggered, (Waits::Pause, self.same_since + trigger::SETTLED_NS))
            } else {
                (decision, trigger::waits(decision, &inputs, &self.history, again))
            }
        };
        pagemill_stats.waits_for.store(waits as u64, Relaxed);
        pagemill_stats.waits_until_ns.store(until, Relaxed);
        decision
    }

    /// Whether `ksmd` has yet to merge what a pass of a settled program has made identical; no pass is begun meanwhile,
    /// for a while.
    fn ksmd_merges(&self, inputs: &Inputs) -> bool {
        self.backend == Backend::Ksm
            && !inputs.request
            && inputs.idle_ns >= trigger::SETTLED_NS
            && inputs.now_ns < self.ended + PATIENCE_NS
            && self.engine.waiting_for_ksmd() > u64::from(trigger::AGAIN / 2)
    }

    /// What is to be gained and what it costs, of the part of all that could be done for which there is room.
    fn in_part(&mut self, inputs: &Inputs) -> Inputs {
        if self.backend != Backend::Ksm {
            return *inputs;
        }
        // A pass may be a part of what could be done: the classes that save most come first.
        let pages = self.engine.last_scan().mergeable_pages;
        let short = trigger::decide(&Inputs { cost_ns: 0, ..*inputs }, &self.history);
        let urgent = matches!(short, Decision::Run { urgent: true, .. });
        let offers = trigger::offers(inputs, urgent, pages);
        let in_part = offers > 0 && offers < pages;
        self.engine.settings.offers = if in_part { offers as usize } else { usize::MAX };
        let part = if in_part { u128::from(offers) } else { u128::from(pages.max(1)) };
        let gain = u128::from(inputs.gain_bytes) * part / u128::from(pages.max(1));
        Inputs {
            gain_bytes: gain as u64,
            cost_ns: self.expected_cost(self.engine.settings.offers),
            ..*inputs
        }
    }

    /// CPU time of compaction so far. The kernel keeps no account of whom `ksmd` works for, so its part is reckoned.
    fn spent_ns(&self) -> u64 {
        let offered = pagemill_stats.ksm_offered.load(Relaxed);
        self.engine.kernel().cpu_ns() + offered * trigger::cost::KSMD_NS
    }

    /// What a pass is expected to take that offers `offers` pages at most.
    fn expected_cost(&self, offers: usize) -> u64 {
        let scan = self.engine.last_scan();
        let page = HEAP.os().page_size() as u64;
        let merge = match self.backend {
            Backend::Ksm => trigger::cost::OFFER_NS + trigger::cost::KSMD_NS,
            Backend::Remap | Backend::None => trigger::cost::REMAP_NS,
        };
        let pages = scan.mergeable_pages.min(offers as u64);
        // Planning looks at the spans again, and so does the scan that ends a pass.
        2 * self.looked + trigger::expected_cost(scan.releasable_bytes / page, pages, merge)
    }

    /// Looks at every span, in slices between which the program goes first.
    fn scan(&mut self, urgent: bool) {
        self.engine.begin_scan(urgent);
        while self.slice(|engine| engine.scan_step(SLICE_NS)) {}
    }

    /// Works until what was begun is done.
    fn slices(&mut self) {
        while self.slice(|engine| engine.step(SLICE_NS)) {}
    }

    /// The same for a pass that began because the program rests: while it works for a moment the pass waits, and it
    /// merges nothing more if that takes long or changes the heap. Whether it did all.
    fn slices_at_rest(&mut self) -> bool {
        let (mut looked, mut rest) = (self.engine.kernel().now_ns(), RestTime::default());
        rest.observe(looked, self.own_ns(), 0);
        let mut whole = true;
        while self.slice(|engine| engine.step(SLICE_NS)) {
            if whole && self.engine.kernel().now_ns() - looked >= LOOK_NS {
                whole = self.rests_again(&mut rest);
                looked = self.engine.kernel().now_ns();
                if !whole {
                    self.engine.cut_short();
                }
            }
        }
        whole
    }

    /// Waits while the program works and its heap stays as it was; whether it rests in the end.
    fn rests_again(&self, rest: &mut RestTime) -> bool {
        for _ in 0..LOOKS_AWAY {
            let totals = HEAP.totals();
            if !trigger::is_same(self.seen, (totals.live, totals.mapped)) {
                return false;
            }
            if rest.observe(self.engine.kernel().now_ns(), self.own_ns(), trigger::IDLE_NS) {
                return true;
            }
            work::breathe(LOOK_NS);
        }
        false
    }

    /// CPU time of the program itself, nanoseconds.
    fn own_ns(&self) -> u64 {
        sys::clock(sys::CLOCK_PROCESS_CPUTIME_ID).saturating_sub(self.engine.kernel().cpu_ns())
    }

    /// One slice, and if there is more to do a rest of its length; whether there is. The program has half of the
    /// processor at least.
    fn slice(&mut self, work: impl FnOnce(&mut Engine<O>) -> Progress) -> bool {
        let begin = self.engine.kernel().now_ns();
        let goes_on = work(self.engine) == Progress::More;
        if goes_on {
            let took = self.engine.kernel().now_ns().wrapping_sub(begin);
            work::breathe(took.clamp(BREATH_NS, 2 * SLICE_NS));
        }
        goes_on
    }

    /// A whole pass, slice by slice. Holds the work lock on entry and on return.
    fn pass(&mut self, why: PassCause, urgent: bool) {
        add(match why {
            PassCause::Request => &pagemill_stats.trigger_request,
            PassCause::Cgroup => &pagemill_stats.trigger_cgroup,
            PassCause::Psi => &pagemill_stats.trigger_psi,
            PassCause::Idle => &pagemill_stats.trigger_idle,
            PassCause::Score => &pagemill_stats.trigger_score,
        });
        let now = self.engine.kernel().now_ns();
        if self.ended != 0 {
            let still = self.kept.min(self.engine.saved_bytes());
            self.history.survived(self.kept, still, now.saturating_sub(self.ended));
        }
        let released = || pagemill_stats.released_bytes.load(Relaxed);
        let before = released() + self.engine.saved_bytes();
        let expected = self.expected_cost(self.engine.settings.offers);
        let began = self.spent_ns();
        let page = HEAP.os().page_size() as u64;
        let scan = self.engine.last_scan();
        let idle = self.idle_ns(now);
        if self.backend == Backend::Remap {
            let kernel = self.engine.kernel();
            let totals = HEAP.totals();
            let small = totals.mapped.saturating_sub(totals.large) as u64;
            // When this is done: otherwise what is merged first would be merged poorly, for want of mappings that are
            // there afterwards.
            let resident =
                (scan.resident_bytes - scan.releasable_bytes).saturating_sub(scan.mergeable_bytes);
            let budget = trigger::mapping_budget(&trigger::Mappings {
                limit: kernel.max_map_count(),
                present: kernel.map_count(),
                held: pagemill_stats.vmas.load(Relaxed) as usize,
                resident_pages: resident / page,
                spared_pages: small.saturating_sub(resident) / page,
                between_forks_ns: self.age_ns(now) / (work::forks() + 1),
            });
            self.engine.settings.mapping_price = trigger::mapping_price(idle, urgent);
            self.engine.settings.mappings = budget.mappings;
            self.engine.settings.by_limit = budget.by_limit;
        }
        let gain = scan.releasable_bytes + scan.mergeable_bytes;
        let work_price = |idle| trigger::work_price(&self.history, gain, idle, urgent);
        (self.engine.settings.work_price, self.engine.settings.extent_work_price) =
            (work_price(idle), work_price(trigger::SETTLED_NS));
        if urgent {
            self.scan(true);
        }
        self.engine.begin(urgent);
        let whole = match why {
            PassCause::Idle => self.slices_at_rest(),
            _ => {
                self.slices();
                true
            }
        };
        self.scan(false);
        self.dead_left = self.engine.last_scan().dead_bytes;
        let now = self.engine.kernel().now_ns();
        let cost = self.spent_ns() - began;
        let saved = (released() + self.engine.saved_bytes()).saturating_sub(before);
        // What a part took says nothing of the whole.
        self.history.record(now, idle, saved, cost, if whole { expected } else { 0 });
        pagemill_stats.stopped_by.store(self.engine.stopped() as u64, Relaxed);
        let scan = self.engine.last_scan();
        self.history.left(scan.releasable_bytes + scan.mergeable_bytes);
        self.ended = now;
        self.kept = self.engine.saved_bytes();
    }

    /// Notes that KSM is asked for and nobody runs `ksmd`: a `run --ksm` that has borrowed it starts it when it is
    /// time.
    fn await_ksmd(&mut self) {
        let waits = self.backend == Backend::Ksm
            && pagemill_stats.ksm_pending.load(Relaxed) > 0
            && self.said & degraded::NO_KSM == 0
            && !ksm_runs()
            && !ksm_is_lent();
        let now = self.engine.kernel().now_ns();
        self.ksmd_awaited = if waits { self.ksmd_awaited.min(now) } else { u64::MAX };
        if now.saturating_sub(self.ksmd_awaited) >= PATIENCE_NS {
            pagemill_stats.degraded.fetch_or(degraded::NO_KSM, Relaxed);
        }
    }

    /// Has the program's next thread say what the engine has found to be missing.
    fn tell(&mut self) {
        let found = pagemill_stats.degraded.load(Relaxed);
        // Memory that was refused the program is told by malloc, and whoever asks by the statistics; a setting was told
        // at once.
        let news = found & !self.said & !(degraded::NO_MEMORY | degraded::BAD_CONFIG);
        self.said = found;
        if news != 0 {
            diagnostics::later(news, 0);
        }
    }
}

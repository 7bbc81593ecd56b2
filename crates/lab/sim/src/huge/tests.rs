use pagemill_policy::huge::{find, names};

use super::*;

fn setup(workload: &str, policy: &str, fragmented: u64) -> Setup {
    Setup {
        workload: Workload::named(workload, 24, 1).unwrap(),
        policy: find(policy).unwrap(),
        profile: None,
        zone: 64 * 512,
        fragmented,
        pinned: false,
        costs: WARM,
        attempt: ATTEMPT_NS,
        tlb: TlbConfig::default(),
        mhz: 2600,
        seed: 1,
    }
}

#[test]
fn the_same_setup_gives_the_same_run() {
    for policy in names() {
        let setup = setup("grow", policy, 500);
        assert_eq!(setup.run(), setup.run(), "{policy}");
    }
}

#[test]
fn linux_is_as_its_setting_says() {
    let always = setup("grow", "linux-always", 0).run();
    let never = setup("grow", "linux-never", 0).run();
    assert_eq!((always.huge, always.fault_count, always.percentiles[3]), (24, 24, 90_000));
    assert_eq!((never.huge, never.fault_count, never.percentiles[3]), (0, 24 * 512, 1_100));
    assert!(always.walks < never.walks && never.helper == 0);
}

/// Fragmented memory makes `always` wait and gives `cbmm+` no fault that does; what it does, it does ahead. Without a
/// profile it knows nothing of walks, so where blocks are dear it stays on base pages and pays for those.
#[test]
fn ahead_of_a_growing_program_nobody_waits() {
    let always = setup("grow", "linux-always", 1000).run();
    let plus = setup("grow", "cbmm+", 1000).run();
    assert!(always.stalls > 0 && always.percentiles[3] > 90_000, "{always:?}");
    assert!(plus.stalls == 0 && plus.percentiles[3] <= 90_000, "{plus:?}");
    let never = setup("grow", "linux-never", 1000).run();
    assert!(plus.faults < always.faults, "{plus:?} {always:?}");
    assert!(plus.time * 100 <= never.time * 105, "{plus:?} {never:?}");
}

#[test]
fn cbmm_acts_on_its_profile_and_on_nothing_else() {
    let without = setup("grow", "cbmm", 0);
    assert_eq!(without.run().huge, 0);
    let end = BASE + 8 * HUGE;
    let text = format!("huge,heap,300000,addr,>,{BASE:#x},addr,<,{end:#x}\n");
    let with = Setup { profile: Some(Profile::parse(&text).unwrap()), ..without };
    assert_eq!(with.run().huge, 8);
    // 300,000 cycles do not pay for a block that has to be made first.
    assert_eq!(Setup { fragmented: 1000, pinned: true, ..with }.run().huge, 0);
}

#[test]
fn ingens_collapses_what_is_full_and_leaves_what_is_sparse() {
    assert!(setup("hot", "ingens", 0).run().huge > 0);
    assert_eq!(setup("sparse", "ingens", 0).run().huge, 0);
    let always = setup("sparse", "linux-always", 0).run();
    assert_eq!(always.bloat, 24 * (512 - 32));
}

#[test]
fn no_frame_is_lost_whatever_moves() {
    for policy in names() {
        for workload in super::names() {
            let setup = setup(workload, policy, 700);
            let mut machine = Machine::new(&setup);
            let kept = machine.zone.pages() - machine.zone.free_pages();
            assert!(machine.program(&mut |_, _| true));
            let used: u64 = machine.regions.iter().map(Region::present).sum();
            let pool = machine.pool.len() as u64 * PER_HUGE;
            let in_use = machine.zone.pages() - machine.zone.free_pages();
            assert_eq!(in_use, kept + used + pool, "{policy} on {workload}");
            assert_eq!(used, machine.resident, "{policy} on {workload}");
            let touched = |region: &Region| -> u64 {
                region.touched.iter().map(|word| u64::from(word.count_ones())).sum()
            };
            let untouched = machine.regions.iter().map(|region| region.present() - touched(region));
            let grown = machine.regions.iter().filter(|region| touched(region) > 0).count() as u64;
            assert_eq!((machine.bloat, machine.grown), (untouched.sum(), grown), "{policy}");
            for (at, region) in machine.regions.iter().enumerate() {
                for (page, frame) in &region.frames {
                    assert_eq!(machine.owners[*frame as usize], Some((at as u32, *page)));
                }
            }
        }
    }
}

/// A recorded program of two mappings: 8 whole regions and, beside them, one that no mapping fills. 20 us of its own
/// after each touch.
fn recorded(policy: &str) -> Setup {
    let mapping = |start: u64, regions: u64| {
        Arc::new(Mapping {
            start,
            end: start + regions * HUGE,
            base: BASE,
            section: Section::Mmap,
            ..Mapping::default()
        })
    };
    let (first, second) = (mapping(BASE, 4), mapping(BASE + 64 * HUGE, 4));
    let of = |mapping: &Arc<Mapping>| {
        let mapping = mapping.clone();
        (0..4).map(move |at| Some((mapping.clone(), mapping.start + at * HUGE)))
    };
    let homes: Vec<RegionMapping> = of(&first).chain([None]).chain(of(&second)).collect();
    let pages = homes.len() as u64 * PER_HUGE;
    let workload = Workload {
        name: "recorded".into(),
        pages,
        touches: (0..pages).collect(),
        own: vec![20_000; pages as usize],
        reads_per_ms: 1000,
        homes,
        ..Workload::default()
    };
    Setup { workload, ..setup("grow", policy, 0) }
}

#[test]
fn a_recorded_program_takes_its_own_time_and_its_faults_whatever_is_assumed_of_reads() {
    for reads_per_ms in [0, 7, 1000, 8000] {
        let mut never = recorded("linux-never");
        never.workload.reads_per_ms = reads_per_ms;
        let outcome = never.run();
        assert_eq!(outcome.time, 9 * 512 * (20_000 + 1_100), "{reads_per_ms}");
        let always = Setup { policy: find("linux-always").unwrap(), ..never }.run();
        let spared = outcome.faults - always.faults + outcome.walks - always.walks;
        assert!(outcome.time.abs_diff(always.time).abs_diff(spared) <= 1000, "{always:?}");
    }
}

/// Each look of the helper went over all regions: a recording of hours and tens of GiB took longer than anybody waited.
#[test]
fn what_a_program_of_many_regions_does_for_long_is_no_more_work_than_that_of_one() {
    let steps = |regions: u64, policy: &str| {
        let mut setup = recorded(policy);
        // Ten minutes of its own, and no reads: what is left is the helper's work.
        setup.workload.pages = regions * PER_HUGE;
        setup.workload.touches = (0..regions).map(|region| region * PER_HUGE).collect();
        setup.workload.own = vec![600_000_000_000 / regions; regions as usize];
        (setup.workload.reads_per_ms, setup.workload.homes) = (0, Vec::new());
        setup.zone = (regions * 2 * PER_HUGE) as u32;
        let mut asked = 0;
        assert!(
            setup
                .run_while(&mut |_, _| {
                    asked += 1;
                    true
                })
                .is_some()
        );
        asked
    };
    for policy in ["linux-never", "linux-always", "ingens", "auto"] {
        assert!(steps(2048, policy) <= steps(16, policy) + 2, "{policy}");
    }
}

#[test]
fn who_does_not_go_on_gets_nothing_and_is_told_how_much_is_done() {
    let mut setup = recorded("linux-never");
    setup.workload.own = vec![60_000_000_000; setup.workload.touches.len()];
    let mut told = Vec::new();
    let outcome = setup.run_while(&mut |done, all| {
        told.push((done, all));
        told.len() < 3
    });
    assert_eq!(outcome, None);
    assert!(told.is_sorted() && told.iter().all(|(done, all)| done < all), "{told:?}");
}

#[test]
fn reads_are_halved_by_each_scan() {
    let region = Region { read: 1000, scan: 5, ..Region::default() };
    assert_eq!([5, 6, 8, 15, 5000].map(|scans| region.read(scans)), [1000, 500, 125, 0, 0]);
}

#[test]
fn what_no_mapping_fills_is_never_huge_and_nothing_is_provided_beyond_a_mapping() {
    for policy in names() {
        let setup = recorded(policy);
        let mut machine = Machine::new(&setup);
        assert!(machine.program(&mut |_, _| true));
        assert_eq!(machine.regions[4].huge, None, "{policy}");
    }
    let mut half = recorded("cbmm+");
    half.workload.touches.truncate(4 * 512);
    half.workload.own.truncate(4 * 512);
    let outcome = half.run();
    assert_eq!((outcome.regions, outcome.bloat), (4, 0), "{outcome:?}");
}

#[test]
fn a_profile_by_call_site_reaches_the_mapping_that_was_made_there() {
    let mut named = recorded("cbmm");
    let site = |home: &mut RegionMapping, name: &str| {
        let (mapping, address) = home.clone().unwrap();
        *home =
            Some((Arc::new(Mapping { site: Some(name.into()), ..(*mapping).clone() }), address));
    };
    named.workload.homes[5..].iter_mut().for_each(|home| site(home, "x+0x10"));
    named.profile = Some(Profile::parse("huge,mmap,300000,site,=,x+0x10\n").unwrap());
    assert_eq!(named.run().huge, 4);
}

/// Where 64 KiB are the cheapest, the helper leaves the region to the program's own faults; these brought base pages.
#[test]
fn what_is_left_to_faults_of_64_kib_comes_by_them() {
    let mut cheap = recorded("cbmm+");
    cheap.costs.medium = Figure::Modelled(2_000);
    cheap.costs.huge = Figure::Modelled(600_000);
    cheap.costs.walk = Figure::Modelled(0);
    cheap.costs.fetch = Figure::Modelled(1_000_000);
    let outcome = cheap.run();
    // The first region of each mapping, the second, of which nothing is known yet, and the one that no mapping fills.
    assert_eq!(outcome.fault_count, 4 * 512 + 5 * 32, "{outcome:?}");
    assert_eq!((outcome.huge, outcome.bloat), (0, 0));
}

#[test]
fn a_policy_that_measures_itself_finds_the_cheapest_way_to_grow() {
    let run = |policy: &str, costs: Costs| {
        let load = Workload::named("grow", 400, 1).unwrap();
        Setup { costs, workload: load, zone: 512 * 512, ..setup("grow", policy, 0) }.run()
    };
    for (medium, huge, cheapest) in
        [(4_500, 900_000, "linux-64k"), (16_000, 60_000, "linux-always")]
    {
        let medium = Figure::Modelled(medium);
        // No memory is cold here, or half a second would be too short to try what takes milliseconds from that.
        let (huge, huge_cold) = (Figure::Modelled(huge), Figure::Absent);
        let costs = Costs { medium, huge, huge_cold, ..WARM };
        let (auto, worst) = (run("auto", costs), run("linux-never", costs).time);
        // Under `linux-64k` the simulated program has no pages of 64 KiB of its own: what they cost is known.
        let best = match cheapest {
            "linux-64k" => worst - 400 * 512 * 1_100 + 400 * 32 * 4_500,
            _ => run(cheapest, costs).time,
        };
        assert!(
            best < worst && auto.time < (best * 2 + worst) / 3,
            "{cheapest}: {auto:?} {best} {worst}"
        );
        assert_eq!(auto, run("auto", costs), "a run is a function of its setup");
    }
}

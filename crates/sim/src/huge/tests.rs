use super::*;

fn setup(workload: &str, policy: &str, fragmented: u64) -> Setup {
    Setup {
        workload: Workload::named(workload, 24, 1).unwrap(),
        policy: Named::find(policy).unwrap(),
        profile: None,
        zone: 64 * 512,
        fragmented,
        pinned: false,
        costs: WARM,
        tlb: TlbConfig::default(),
        mhz: 2600,
        seed: 1,
    }
}

#[test]
fn the_same_setup_gives_the_same_run() {
    for policy in Named::NAMES {
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
    let end = BASE + 8 * REGION;
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
    for policy in Named::NAMES {
        for workload in WORKLOADS {
            let setup = setup(workload, policy, 700);
            let mut machine = Machine::new(&setup);
            let kept = machine.zone.pages() - machine.zone.free_pages();
            machine.program();
            let used: u64 = machine.regions.iter().map(Region::present).sum();
            let stock = machine.stock.len() as u64 * PAGES;
            let in_use = machine.zone.pages() - machine.zone.free_pages();
            assert_eq!(in_use, kept + used + stock, "{policy} on {workload}");
            assert_eq!(used, machine.resident, "{policy} on {workload}");
            for (at, region) in machine.regions.iter().enumerate() {
                for (page, frame) in &region.frames {
                    assert_eq!(machine.owners[*frame as usize], Some((at as u32, *page)));
                }
            }
        }
    }
}

//! A program whose memory the guest test places: hot, cold, locked and shared areas of known place and
//! heat.
//!
//! `tiered FILE AREA…` with areas such as `hot:32:1` (kind, MiB, node). Each is bound to its node only while
//! it is first touched. Then the hot ones are read until the end, and FILE says where the pages of each are.
//! Kinds: `hot` is read all the time, `cold` never, `locked` is hot and mlocked, `shared` is hot and
//! mapped by a forked child too, `sparse` has one 4 KiB page in each 2 MiB.
//!
//! `tiered where PID` says instead where the private anonymous memory of another process is: lines of first address,
//! address after the last and node.

use std::hint::black_box;
use std::time::Duration;

use pagemill_kernel::Linux;
use pagemill_kernel::nodes::mempolicy::Bound;
use pagemill_kernel::nodes::move_pages::{PageLocation, locate};
use pagemill_model::Pid;

const MIB: usize = 1 << 20;

fn main() {
    let mut areas = Vec::new();
    let mut shared = false;
    let mut words = std::env::args().skip(1);
    let file = words.next().expect("FILE AREA…");
    if file == "where" {
        let pid = words.next().and_then(|pid| pid.parse().ok()).expect("where PID");
        return print!("{}", places(Pid(pid)));
    }
    for word in words {
        let parts: Vec<&str> = word.split(':').collect();
        let [kind, mib, node] = parts.as_slice() else { panic!("{word}: valid: KIND:MIB:NODE") };
        let size = mib.parse::<usize>().expect("MIB is a number") * MIB;
        let node = node.parse().expect("NODE is a number");
        let mut memory = Bound::on(node, size).expect("the node has memory");
        let step = if *kind == "sparse" { 2 * MIB } else { 4096 };
        memory.bytes().iter_mut().step_by(step).for_each(|byte| *byte = 1);
        memory.release().expect("the policy can be taken back");
        if *kind == "locked" {
            memory.lock().expect("mlock is allowed");
        }
        shared |= *kind == "shared";
        areas.push((kind.to_string(), memory));
    }
    if shared {
        pagemill_kernel::nodes::mempolicy::fork_a_sleeper().expect("fork works");
    }
    say(&file, &areas);
    for round in 1_u64.. {
        for (kind, memory) in &mut areas {
            if kind != "cold" && kind != "sparse" {
                let sum: u64 =
                    memory.bytes().iter().step_by(4096).map(|byte| u64::from(*byte)).sum();
                black_box(sum);
            }
        }
        if round.is_multiple_of(20) {
            say(&file, &areas);
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Runs of pages on one node.
fn places(pid: Pid) -> String {
    let maps = Linux::live().maps(pid).expect("the process can be looked at");
    let mut text = String::new();
    for area in maps.iter().filter(|area| !area.shared && area.write && area.inode == 0) {
        let pages: Vec<u64> = (area.start..area.end).step_by(4096).collect();
        let places = locate(pid, &pages).expect("its pages can be located");
        let whole: Vec<(u64, PageLocation)> = pages.into_iter().zip(places).collect();
        for run in whole.chunk_by(|one, next| one.1 == next.1) {
            if let [(first, PageLocation::Node(node)), ..] = run {
                text += &format!("{first} {} {node}\n", first + run.len() as u64 * 4096);
            }
        }
    }
    text
}

/// Replaces the file by a line for each area: kind, and 4 KiB pages on node 0 and on node 1.
fn say(file: &str, areas: &[(String, Bound)]) {
    let me = Pid::own();
    let mut text = String::new();
    for (kind, memory) in areas.iter().filter(|(kind, _)| kind != "sparse") {
        let first = memory.address();
        let pages: Vec<u64> = (first..first + memory.len() as u64).step_by(4096).collect();
        let places = locate(me, &pages).expect("a process may locate its own pages");
        let on = |node| places.iter().filter(|place| **place == PageLocation::Node(node)).count();
        text += &format!("{kind} {} {}\n", on(0), on(1));
    }
    text += &format!("ready {me}\n");
    let fresh = format!("{file}.new");
    std::fs::write(&fresh, text)
        .and_then(|()| std::fs::rename(&fresh, file))
        .expect("the file can be written");
}

//! Bytes that are what they should be.

use std::fs;
use std::io::Read as _;

use pagemill_model::dataset::{Cell, FileWriter, Shape};
use pagemill_model::event;
use pagemill_model::recording::{Meta, Writer};
use pagemill_model::results::ResultRow;
use pagemill_model::{Bytes, Nanos};

use crate::kernel::{OWN, TEXTS};
use crate::scratch::repository;

fn longs(values: &[u64]) -> Vec<u8> {
    values.iter().flat_map(|value| value.to_le_bytes()).collect()
}

/// A record of perf.data: type, misc, body.
fn record(kind: u32, misc: u16, body: &[u8]) -> Vec<u8> {
    let mut bytes = kind.to_le_bytes().to_vec();
    bytes.extend(misc.to_le_bytes());
    bytes.extend((body.len() as u16 + 8).to_le_bytes());
    bytes.extend(body);
    bytes
}

/// A file of two events whose samples have all that a sample can have of a certain place, or all that has none, too.
fn perf_file(sample: u64, records: &[Vec<u8>]) -> Vec<u8> {
    let data = records.concat();
    let attribute = |first: u64| {
        let mut one = vec![0; 112];
        one[24..32].copy_from_slice(&sample.to_le_bytes());
        // The format of READ: with a group, times and identifiers.
        one[32] = 15;
        [one, longs(&[first, 8])].concat()
    };
    let attributes = [attribute(104), attribute(112)].concat();
    let (size, at) = (attributes.len() as u64, 120 + attributes.len() as u64);
    let header = longs(&[104, 128, 120, size, at, data.len() as u64, 0, 0, 0, 0, 0, 0]);
    [b"PERFILE2".to_vec(), header, longs(&[70, 71]), attributes, data].concat()
}

pub fn perf_data() -> Vec<Vec<u8>> {
    // IDENTIFIER, IP, TID, TIME, ADDR, CPU, CALLCHAIN, DATA_SRC of perf_event_open(2).
    const PLAIN: u64 = 1 << 16 | 1 | 2 | 4 | 8 | 1 << 7 | 1 << 5 | 1 << 15;
    // And READ, RAW, BRANCH_STACK, REGS_USER, STACK_USER, WEIGHT.
    const ALL: u64 = PLAIN | 1 << 4 | 1 << 10 | 1 << 11 | 1 << 12 | 1 << 13 | 1 << 14;
    let mut mapped = longs(&[7 | 7 << 32, 0x1000, 0x2000, 0, 0, 0, 0, 3 | 2 << 32]);
    mapped.extend(b"/bin/cat\0\0\0\0\0\0\0\0");
    let named = [longs(&[7 | 7 << 32]), b"cat\0\0\0\0\0".to_vec()].concat();
    let ids = 7 | 8 << 32;
    let plain = [71, 0x4000, ids, 20, 0x1234, 3, 2, 11, 12, 4];
    let all = [70, 0x4000, ids, 10, 0x1000, 3, 1, 9, 9, 70, 5, 2, 11, 12, 4, 0, 0, 0, 0, 30, 2, 0];
    let records = |sample: &[u64]| {
        let sample = record(9, 2, &longs(sample));
        vec![
            record(3, 1 << 13, &named),
            record(10, 2, &mapped),
            sample,
            record(2, 0, &longs(&[70, 5])),
        ]
    };
    vec![perf_file(PLAIN, &records(&plain)), perf_file(ALL, &records(&all))]
}

pub fn pftrace() -> Vec<Vec<u8>> {
    // Flags, then times that grow: records of eight words and of seven; and what was not recorded.
    let record = |words: u64, start: u64| {
        let times = (1..words).map(|word| if word == 5 { 50 } else { start + word * 20_000 });
        longs(&std::iter::once(1).chain(times).collect::<Vec<_>>())
    };
    let file = |words| (0..5).flat_map(|number| record(words, number << 20)).collect();
    let rejected = [b"1:70 20000:5 0:12 ".as_slice(), &[0; 14]].concat();
    vec![file(8), file(7), rejected]
}

const PROFILES: [&str; 3] = [
    "# unit: ns\nhuge,mmap,51000,site,=,libc.so.6+0x9f2e1,len,>,0x1fffff  # dense: 511 of 512\n",
    "huge,heap,243632025,addr,>,0x0,addr,<,0x7fcc76400000\neager,heap,1,addr,>,0x601000,addr,<,0x602000\n",
    "# unit: cycles\nhuge,code,7\nhuge,mmap,7,section_off,<,0x2000,prot,=,3,flags,=,34,fd,=,4,off,>,0\n",
];

pub fn profile() -> Vec<Vec<u8>> {
    PROFILES.map(|text| text.as_bytes().to_vec()).into()
}

pub fn machine() -> Vec<Vec<u8>> {
    let of = repository("crates/lab/sim/machines");
    let files = fs::read_dir(of).into_iter().flatten().filter_map(|entry| entry.ok());
    files.filter_map(|entry| fs::read(entry.path()).ok()).collect()
}

pub fn latencies() -> Vec<Vec<u8>> {
    vec![b"0 100 200\n1.5, 120, 210, 1e6, 2e5 # a comment\n3;100;300\n".to_vec()]
}

/// Of a machine with two nodes.
pub const FREE_MEMORY: &str = r#"{"time_ns":8123456789,"page_bytes":4096,"zones":[
    {"node":0,"zone":"DMA","large":false,"free_blocks":[0,3,2,1,1,1,1,0,1,1,3],"free_pages":3974,"hidden_pages":0,
        "managed_pages":3974,"unusable":[0.0,0.0,0.001],"external":[-1.0,-1.0,-1.0]},
    {"node":0,"zone":"Normal","large":true,"free_blocks":[512,0,0,0,0,0,0,0,0,1,0],"hidden_pages":7,
        "managed_pages":5000000},
    {"node":1,"zone":"Normal","large":true,"free_blocks":[7,6,5,4,3,2,1,0,0,0,900],"hidden_pages":null,
        "managed_pages":null}],"together":{"free_blocks":[519],"unusable":[0.0]},"mobility":null}"#;

pub fn free_memory() -> Vec<Vec<u8>> {
    let most = FREE_MEMORY
        .replace("3974", "18446744073709551615")
        .replace("5000000", "9223372036854775808");
    [FREE_MEMORY, &most].map(|text| text.as_bytes().to_vec()).into()
}

const CELLS: [&str; 2] = [
    r#"{"schema":1,"of":{"seed":1,"scale":0.1,"window":null},"build":"b","host":"h","seconds":2.5,"metrics":{"cpu":0.25,
        "end_pss_bytes":4096},"notes":["n"],"digest":7,"samples":[[0.1,4096,8192],[0.2,8192,null]]}"#,
    r#"{"schema":1,"of":{"seed":2,"scale":1.0,"window":7.5},"build":"b","host":"h","seconds":0.0,"failed":"it died",
        "metrics":{},"notes":[],"digest":null,"samples":[]}"#,
];

pub fn cell() -> Vec<Vec<u8>> {
    CELLS.map(|text| text.as_bytes().to_vec()).into()
}

pub fn collected() -> Vec<Vec<u8>> {
    let row = |arm: &str, name: &str, value: f64| ResultRow {
        experiment: Some("pauses".to_owned()),
        case: Some("churn".to_owned()),
        arm: Some(arm.to_owned()),
        repetition: Some(1),
        seed: Some(1),
        scale: Some(0.5),
        name: Some(name.to_owned()),
        value: Some(value),
        ..ResultRow::default()
    };
    let mut rows = Vec::new();
    for arm in ["glibc", "jemalloc"] {
        rows.extend(["cell_seconds", "cpu", "end_pss_bytes"].map(|name| row(arm, name, 2.5)));
        let (at, pss) = (Some(vec![1, 2]), Some(vec![4096, 8192]));
        rows.push(ResultRow { at, pss: pss.clone(), charge: pss, ..row(arm, "memory", 0.0) });
    }
    let mut file = match FileWriter::create(Vec::new()) {
        Ok(file) => file,
        Err(_) => return Vec::new(),
    };
    let written = file.write(&rows).and_then(|()| file.finish());
    written.into_iter().collect()
}

pub fn matrix() -> Vec<Vec<u8>> {
    let options =
        r#"{"quick":true,"repetitions":3,"arms":["glibc"],"scale":0.5,"settle":null,"seed":1}"#;
    let text = format!(
        r#"{{"schema":1,"experiments":["pauses"],"programs":null,"options":{options},
        "cells":["pauses/churn/glibc/1","pauses/churn/jemalloc/2"],
        "skipped":[{{"experiment":"tiers","arm":null,"reason":"no nodes"}}],"machine":["2 CPUs"],
        "seconds":[1.5,null]}}"#
    );
    vec![text.into_bytes()]
}

pub fn traces() -> Vec<Vec<u8>> {
    fs::read(repository("experiments/kept/moca.parquet")).into_iter().collect()
}

/// A recording with some rows of every dataset.
fn recorded() -> Option<(Vec<u8>, Vec<Vec<u8>>)> {
    let room = tempfile::tempdir().ok()?;
    let path = room.path().join("seed");
    let meta = Meta { page_size: Bytes(4096), comm: "seed".into(), ..Meta::default() };
    let mut writer = Writer::create(&path, meta, false, None).ok()?;
    for number in 0..6_u64 {
        for dataset in event::SCHEMA {
            let mut at = 0;
            let event = (dataset.make)(&mut |column| {
                at += 1;
                match column.shape {
                    _ if (at + number) % 5 == 4 && column.name != "time_ns" => Cell::Absent,
                    Shape::Number => Cell::Number(number * 1000 + at * 4096),
                    Shape::Numbers => Cell::Numbers(vec![at, number, 4096 * at]),
                    Shape::Real => Cell::Real(at as f64),
                    Shape::Text => Cell::Text("[heap]".to_owned()),
                }
            });
            writer.event(&event).ok()?;
        }
    }
    let path = writer.finish(Nanos(1 << 20)).ok()?;
    let header = fs::read(path.join("meta.json")).ok()?;
    let mut parts = Vec::new();
    for (number, dataset) in (0_u8..).zip(event::DATASETS) {
        for entry in fs::read_dir(path.join(dataset)).ok()?.flatten() {
            parts.push([vec![number], fs::read(entry.path()).ok()?].concat());
        }
    }
    Some((header, parts))
}

pub fn meta() -> Vec<Vec<u8>> {
    let Some((header, _)) = recorded() else { return Vec::new() };
    let Ok(mut value) = serde_json::from_slice::<serde_json::Value>(&header) else {
        return Vec::new();
    };
    if let Some(members) = value.as_object_mut() {
        members.remove("checked");
        members.remove("checksum");
    }
    vec![value.to_string().into_bytes(), header]
}

pub fn part() -> Vec<Vec<u8>> {
    recorded().map(|(_, parts)| parts).unwrap_or_default()
}

pub fn program() -> Vec<Vec<u8>> {
    // Small ones of the system, and scripts.
    let read = |path| fs::read(path).ok().filter(|bytes| bytes.len() < 200_000);
    let programs = ["/bin/true", "/bin/cat", "/sbin/ldconfig"].into_iter().filter_map(read);
    let scripts = ["#!/bin/sh -e\n", "#!/usr/bin/env -S python3 -u\n", "#!/bin/true"];
    programs.chain(scripts.map(|text| text.as_bytes().to_vec())).collect()
}

pub fn events() -> Vec<Vec<u8>> {
    // Kinds, and numbers of every sort.
    let any = |seed: u64| {
        let mut state = seed;
        let mut next = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (state >> 33) as u8
        };
        (0..600).map(|_| next()).collect()
    };
    (1..=8).map(any).chain([huge()]).collect()
}

/// A row of each kind whose numbers are as large as can be, some of them twice: runs of pages up to the last address.
fn huge() -> Vec<u8> {
    let number = |value: u64| [vec![u8::MAX], value.to_le_bytes().to_vec()].concat();
    let mut bytes = [number(0), number(0), vec![0]].concat();
    for (kind, dataset) in (0_u8..).zip(event::SCHEMA) {
        for _ in 0..2 {
            bytes.push(kind);
            drop((dataset.make)(&mut |column| {
                if column.name != "time_ns" {
                    bytes.push(1);
                }
                match column.shape {
                    Shape::Number => {
                        // Memory begins at the first page; all else is as large as can be.
                        let least = ["start", "address"].contains(&column.name);
                        bytes.extend(number(if least { 4096 } else { u64::MAX }));
                    }
                    Shape::Numbers if column.name.ends_with("starts") => {
                        bytes.extend([vec![1], number(4096)].concat());
                    }
                    Shape::Numbers => bytes.extend([vec![1], number(u64::MAX)].concat()),
                    Shape::Real => bytes.extend(number(u64::MAX)),
                    Shape::Text => bytes.push(1),
                }
                Cell::Absent
            }));
        }
    }
    bytes
}

pub fn kernel() -> Vec<Vec<u8>> {
    let roots = ["debian-12", "two-nodes"];
    let roots = roots.map(|root| repository("crates/base/kernel/tests/fixtures").join(root));
    let mut seeds = Vec::new();
    for (number, (path, _)) in (0_u8..).zip(TEXTS) {
        let texts = roots.iter().filter_map(|root| fs::read(root.join(path)).ok());
        // Of what has a word for each frame of memory the beginning.
        let own = fs::File::open(std::path::Path::new("/").join(path)).ok().and_then(|file| {
            let mut text = Vec::new();
            file.take(1 << 16).read_to_end(&mut text).ok().map(|_| text)
        });
        let of_it = OWN.iter().filter(|(other, _)| other == path).map(|(_, text)| text.to_vec());
        seeds.extend(texts.chain(own).chain(of_it).map(|text| [vec![number], text].concat()));
    }
    seeds
}

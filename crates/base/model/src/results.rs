//! Results of experiments as rows of one table: what a cell measured, a row a figure, and its memory over time in one
//! row more.
//!
//! A *cell* is one run: an experiment, a case of it, an arm, a repetition. Its rows have the same first columns, so
//! that a table is read without joining any other: `SELECT arm, median(value) FROM 'cells.parquet' WHERE name = 'cpu'
//! GROUP BY arm`.

use crate::dataset::row;

row! {
    /// A figure of a cell, or what it said, or its memory over time.
    pub struct ResultRow in "results" {
        /// The experiment.
        experiment: Option<String> = "experiment",
        /// The case: one program of several, or the experiment's name.
        case: Option<String> = "case",
        /// The arm: what is compared.
        arm: Option<String> = "arm",
        /// Of the repetitions of the arm, from 1.
        repetition: Option<u64> = "repetition",
        /// Seed of its inputs.
        seed: Option<u64> = "seed",
        /// Share of the experiment's full size.
        scale: Option<f64> = "scale",
        /// Window of the Redis experiment in seconds, if it is not the published one.
        window: Option<f64> = "window_seconds",
        /// The build that ran it.
        build: Option<String> = "build",
        /// The machine that ran it.
        host: Option<String> = "host",
        /// Name of the figure; `failed`, `note` and `digest` are words, `memory` is lists.
        name: Option<String> = "name",
        /// The figure, in bytes, seconds or counts.
        value: Option<f64> = "value",
        /// What was said instead.
        words: Option<String> = "words",
        /// Of memory: when it was read, since the program's start.
        at: Option<Vec<u64>> = "at_ns",
        /// Of memory: proportional set size at each of these moments.
        pss: Option<Vec<u64>> = "pss_bytes",
        /// Of memory: charge of the program's memory cgroup at each of them.
        charge: Option<Vec<u64>> = "charge_bytes",
    }
}

row! {
    /// A run of the comparison of access traces, or pages held against those of the emulator, or a fact of all runs.
    pub struct TraceRun in "traces" {
        /// `run`, `sweep` (one pair of intervals), `validated` (pages of both), `missing` (a back end that did not
        /// run), `source` (of a back end's events), `skipped`, `machine`, or `interrupted`.
        kind: Option<String> = "kind",
        /// The kernel.
        kernel: Option<String> = "kernel",
        /// Its class.
        class: Option<String> = "class",
        /// Its threads.
        threads: Option<u64> = "threads",
        /// The back end.
        back_end: Option<String> = "back_end",
        /// Interval of the monitor's wake-ups.
        monitor_ms: Option<f64> = "monitor_ms",
        /// Interval of the log's wake-ups.
        log_ms: Option<u64> = "log_ms",
        /// Of the runs, from 1.
        repetition: Option<u64> = "repetition",
        /// CPU time of the same run untraced, seconds.
        native_cpu_seconds: Option<f64> = "native_cpu_seconds",
        /// CPU time of the traced run, seconds.
        cpu_seconds: Option<f64> = "cpu_seconds",
        /// Recorded accesses.
        events: Option<u64> = "events",
        /// Distinct pages.
        pages: Option<u64> = "pages",
        /// Intervals.
        intervals: Option<u64> = "intervals",
        /// Samples that were lost.
        lost: Option<u64> = "lost",
        /// Of touched pages, written pages, and both in each interval: those of the emulator, of them those that the
        /// tracer missed, and those that it told besides.
        found_pages: Option<Vec<u64>> = "found_pages",
        /// What is said of it.
        words: Option<String> = "words",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dataset::{FileWriter, decode};

    #[test]
    fn figures_that_are_not_whole_and_rows_without_a_stamp_come_back() {
        let figure = |value: f64| ResultRow {
            experiment: Some("pauses".into()),
            repetition: Some(1),
            name: Some("cpu".into()),
            value: Some(value),
            ..ResultRow::default()
        };
        let mut rows = vec![figure(0.1), figure(-1e300), figure(0.1), figure(f64::INFINITY)];
        let memory = Some(vec![4096, 8192]);
        rows.push(ResultRow { at: Some(vec![7, 9]), pss: memory, ..ResultRow::default() });
        let mut file = FileWriter::create(Vec::new()).unwrap();
        file.write(&rows).unwrap();
        let read: Vec<ResultRow> = decode(&file.finish().unwrap()).unwrap();
        assert_eq!(read, rows);
    }
}

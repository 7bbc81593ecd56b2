//! Kernel same-page merging (Documentation/admin-guide/mm/ksm.rst): the thread `ksmd` looks for pages
//! with equal content among the memory that programs have offered (`MADV_MERGEABLE`) and lets them
//! share one physical page until one of them is written.
//!
//! Its settings belong to the whole system, so whoever changes them must put them back: see
//! [`crate::settings::ksm_loan`].

use pagemill_model::Pid;

use crate::error::present;
use crate::memory::mapped::Mapped;
use crate::settings::thp::Choice;
use crate::{Error, Linux, Result};

const DIRECTORY: &str = "/sys/kernel/mm/ksm";

/// What `ksmd` is told to do: the value of `run`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Run {
    /// 0: stop; merged pages stay merged.
    Stop,
    /// 1: scan and merge.
    Merge,
    /// 2: stop, and take all merged pages apart.
    Unmerge,
}

impl Run {
    /// The number that the kernel knows it by.
    #[must_use]
    pub fn number(self) -> u64 {
        match self {
            Self::Stop => 0,
            Self::Merge => 1,
            Self::Unmerge => 2,
        }
    }
}

/// The settings that decide how fast `ksmd` merges. A setting that this kernel lacks is absent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Whether it runs.
    pub run: Run,
    /// Pages that it looks at before it sleeps.
    pub pages_to_scan: u64,
    /// How long it sleeps, milliseconds.
    pub sleep_millisecs: u64,
    /// Who chooses `pages_to_scan`: `none` or `scan-time` (kernel 6.8).
    pub advisor_mode: Option<String>,
    /// Whether pages that did not merge are skipped for some rounds (kernel 6.7).
    pub smart_scan: Option<u64>,
}

pub(crate) fn parse_run(text: &str) -> Option<Run> {
    match text.trim() {
        "0" => Some(Run::Stop),
        "1" => Some(Run::Merge),
        "2" => Some(Run::Unmerge),
        _ => None,
    }
}

/// What KSM has achieved, for the whole system.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Counters {
    /// Physical pages that several virtual pages share.
    pub pages_shared: u64,
    /// Virtual pages that share them, beyond the first of each: the pages saved.
    pub pages_sharing: u64,
    /// Pages that were looked at and are unique.
    pub pages_unshared: u64,
    /// Pages that change too fast.
    pub pages_volatile: u64,
    /// Times that all offered memory has been looked at.
    pub full_scans: u64,
    /// Pages looked at so far (kernel 6.7).
    pub pages_scanned: Option<u64>,
    /// Pages merged with the zero page (kernel 6.6).
    pub zero_pages: Option<u64>,
    /// Bytes saved less the bytes of KSM's own tables (kernel 6.1).
    pub general_profit: Option<i64>,
}

/// What KSM does for one process: `/proc/PID/ksm_stat` (kernel 6.1; some fields later).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ProcessStat {
    /// Pages that KSM keeps an entry for.
    pub rmap_items: Option<u64>,
    /// Pages merged with the zero page.
    pub zero_pages: Option<u64>,
    /// Pages that share a physical page.
    pub merging_pages: Option<u64>,
    /// Bytes saved less the bytes of KSM's own tables.
    pub profit: Option<i64>,
    /// Whether all its memory is offered (`PR_SET_MEMORY_MERGE`).
    pub merge_any: Option<bool>,
    /// Whether any of its memory is offered.
    pub mergeable: Option<bool>,
}

/// Tries whether this process may offer memory for merging (`MADV_MERGEABLE`), on a page of its own.
/// Nothing is merged by this alone.
///
/// # Errors
/// The kernel has no KSM, or no memory for a page.
pub fn try_to_offer() -> Result<()> {
    let page = Mapped::anonymous(crate::page_size(), 0)
        .map_err(|error| Error::io("map", "a page", error))?;
    page.advise(libc::MADV_MERGEABLE).map_err(|error| {
        Error::io("offer memory to", "KSM", error).advise("use a kernel with CONFIG_KSM=y")
    })
}

impl Linux {
    /// Whether this process may change the settings: tried by opening `run` for writing.
    ///
    /// # Errors
    /// It may not, or this kernel has no KSM.
    pub fn may_set_ksm(&self) -> Result<()> {
        self.may_write(format!("{DIRECTORY}/run"))
    }

    /// The settings in force.
    ///
    /// # Errors
    /// [`crate::Kind::NotFound`] on a kernel without KSM; a file cannot be read, or is not of the form that is known.
    pub fn ksm_settings(&self) -> Result<Settings> {
        let run = self.read(format!("{DIRECTORY}/run"))?;
        let advisor: Option<Choice> = present(self.choice(&format!("{DIRECTORY}/advisor_mode")))?;
        Ok(Settings {
            run: parse_run(&run).ok_or_else(|| {
                Error::malformed(format_args!("{DIRECTORY}/run"), format_args!("{run:?}"))
            })?,
            pages_to_scan: self.read_number(format!("{DIRECTORY}/pages_to_scan"))?,
            sleep_millisecs: self.read_number(format!("{DIRECTORY}/sleep_millisecs"))?,
            advisor_mode: advisor.map(|choice| choice.active),
            smart_scan: present(self.read_number(format!("{DIRECTORY}/smart_scan")))?,
        })
    }

    /// Puts settings in force. `run` comes last, so that `ksmd` never runs at a pace that nobody
    /// asked for. While the advisor is on the kernel refuses `pages_to_scan`, which is its own then.
    ///
    /// # Errors
    /// The caller is not root, or the kernel refuses a value.
    pub fn set_ksm_settings(&self, settings: &Settings) -> Result<()> {
        let set = |name: &str, value: &str| {
            self.write(format!("{DIRECTORY}/{name}"), value)
                .map_err(|error| error.advise("KSM is set by root; see pagemill doctor"))
        };
        let advised = settings.advisor_mode.as_deref().is_some_and(|mode| mode != "none");
        if settings.advisor_mode.is_some() {
            set("advisor_mode", "none")?;
        }
        set("pages_to_scan", &settings.pages_to_scan.to_string())?;
        set("sleep_millisecs", &settings.sleep_millisecs.to_string())?;
        if let Some(smart) = settings.smart_scan {
            set("smart_scan", &smart.to_string())?;
        }
        if let Some(mode) = settings.advisor_mode.as_deref().filter(|_| advised) {
            set("advisor_mode", mode)?;
        }
        set("run", &settings.run.number().to_string())
    }

    /// What KSM has achieved.
    ///
    /// # Errors
    /// [`crate::Kind::NotFound`] on a kernel without KSM; a file cannot be read, or holds no number.
    pub fn ksm_counters(&self) -> Result<Counters> {
        let number = |name: &str| self.read_number(format!("{DIRECTORY}/{name}"));
        Ok(Counters {
            pages_shared: number("pages_shared")?,
            pages_sharing: number("pages_sharing")?,
            pages_unshared: number("pages_unshared")?,
            pages_volatile: number("pages_volatile")?,
            full_scans: number("full_scans")?,
            pages_scanned: present(number("pages_scanned"))?,
            zero_pages: present(number("ksm_zero_pages"))?,
            general_profit: present(self.read(format!("{DIRECTORY}/general_profit")))?
                .and_then(|text| text.trim().parse().ok()),
        })
    }

    /// What KSM does for process `pid`.
    ///
    /// # Errors
    /// The process has ended or may not be looked into, or the kernel is older than 6.1.
    pub fn ksm_stat(&self, pid: Pid) -> Result<ProcessStat> {
        Ok(parse_process_stat(&self.read_of(pid, "ksm_stat")?))
    }
}

fn parse_process_stat(text: &str) -> ProcessStat {
    let value = |key: &str| {
        text.lines().find_map(|line| Some(line.strip_prefix(key)?.strip_prefix([' ', ':'])?.trim()))
    };
    let flag = |key| value(key).map(|word| word == "yes");
    ProcessStat {
        rmap_items: value("ksm_rmap_items").and_then(|value| value.parse().ok()),
        zero_pages: value("ksm_zero_pages").and_then(|value| value.parse().ok()),
        merging_pages: value("ksm_merging_pages").and_then(|value| value.parse().ok()),
        profit: value("ksm_process_profit").and_then(|value| value.parse().ok()),
        merge_any: flag("ksm_merge_any"),
        mergeable: flag("ksm_mergeable"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures;
    use crate::settings::loan::Settings as _;

    fn settings() -> Settings {
        Settings {
            run: Run::Merge,
            pages_to_scan: 4000,
            sleep_millisecs: 5,
            advisor_mode: Some("scan-time".into()),
            smart_scan: Some(0),
        }
    }

    #[test]
    fn the_settings_of_a_real_machine_read() {
        let found = fixtures::debian().ksm_settings().unwrap();
        assert_eq!((found.run, found.pages_to_scan, found.sleep_millisecs), (Run::Stop, 100, 20));
        assert_eq!(found.advisor_mode.as_deref(), Some("none"));
        assert_eq!(found.smart_scan, Some(1));
    }

    #[test]
    fn the_counters_of_a_real_machine_read() {
        let counters = fixtures::debian().ksm_counters().unwrap();
        assert_eq!((counters.pages_shared, counters.pages_sharing), (0, 0));
        assert_eq!((counters.zero_pages, counters.general_profit), (Some(0), Some(0)));
        let stat = fixtures::debian().ksm_stat(fixtures::PROCESS).unwrap();
        assert_eq!((stat.merging_pages, stat.mergeable), (Some(0), Some(false)));
    }

    #[test]
    fn settings_survive_being_written_down() {
        assert_eq!(Settings::parse(&settings().to_text()), Some(settings()));
        let old = Settings { advisor_mode: None, smart_scan: None, ..settings() };
        assert_eq!(Settings::parse(&old.to_text()), Some(old));
        assert_eq!(Settings::parse("run 1\npages_to_scan"), None);
    }

    #[test]
    fn a_negative_profit_is_a_profit() {
        let stat =
            parse_process_stat("ksm_rmap_items 5\nksm_process_profit -320\nksm_merge_any: yes\n");
        assert_eq!((stat.rmap_items, stat.profit), (Some(5), Some(-320)));
        assert_eq!((stat.merge_any, stat.merging_pages), (Some(true), None));
    }
}

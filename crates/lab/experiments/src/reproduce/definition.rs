//! Experiments with tables of their own, as files: what they need, and how much of what runs in full and with
//! `--quick`. The files are compiled into the binary; unknown keys are errors.

use serde::Deserialize;
use serde::de::DeserializeOwned;

/// An experiment with tables of its own; `R` is what it runs.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Definition<R> {
    /// Its name on the command line.
    pub name: String,
    /// What it is, in a line.
    pub title: String,
    /// What happens in it, in a paragraph.
    pub about: String,
    /// What it needs, in words.
    pub needs: String,
    /// What is compared.
    pub arms: Vec<String>,
    /// How much of it.
    pub full: Size<R>,
    /// With `--quick`.
    pub quick: Size<R>,
    /// With `--full-size`: the sizes of the publication, where those take longer than a full run may.
    pub full_size: Option<Size<R>>,
}

/// How much of an experiment.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Size<R> {
    /// Runs of each arm.
    pub repetitions: u32,
    /// Roughly how long a cell takes, until that is known.
    pub seconds: f64,
    /// Share of the full size.
    #[serde(default = "full")]
    pub scale: f64,
    /// What runs.
    pub runs: R,
}

fn full() -> f64 {
    1.0
}

impl<R> Definition<R> {
    /// How much of it.
    pub fn size(&self, quick: bool) -> &Size<R> {
        if quick { &self.quick } else { &self.full }
    }
}

/// The experiment in a file of this binary.
pub fn read<R: DeserializeOwned>(text: &str) -> Definition<R> {
    toml::from_str(text).expect("the files of this binary are read by its tests")
}

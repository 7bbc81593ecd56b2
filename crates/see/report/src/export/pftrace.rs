//! Page faults as CBMM's kernel traces them, with their counts in a file beside.

use std::path::Path;

use anyhow::{Result, bail};
use pagemill_launch::files;
use pagemill_model::Source as _;
use pagemill_model::pftrace::{Clock, Export, counts_beside};
use pagemill_model::recording::Reader;

use super::format::{Content, Format};

pub(super) const FORMAT: Format = Format {
    name: "pftrace",
    about: "Page faults as CBMM's kernel traces them, with a .rejected file beside",
    content: Content::Faults,
};

/// Writes both files, in cycles of so many MHz; what was written, and what reads it.
pub(super) fn write(
    reader: &mut Reader,
    recording: &Path,
    (output, replaces): (&Path, bool),
    mhz: u64,
) -> Result<String> {
    if output == Path::new("-") {
        bail!("--format pftrace writes two files, and standard output is one (name a file by -o)");
    }
    let Some(setup) = reader.meta().faults.clone() else {
        bail!(
            "{} has no page faults (make one with: pagemill record --with faults)",
            recording.display()
        );
    };
    let clock = Clock { mhz };
    let mut export = Export::new(clock);
    while let Some(event) = reader.next_event()? {
        export.event(&event);
    }
    let (trace, rejected) = export.files();
    let beside = counts_beside(output);
    files::write(output, &trace, replaces)?;
    files::write(&beside, &rejected, replaces)?;
    let (records, counted) = export.amount();
    Ok(format!(
        "wrote {records} faults to {output} and {counted} counts to {}, in cycles of {mhz} MHz; threshold {} \
         cycles\nnext: pagemill report {output} --mhz {mhz}",
        beside.display(),
        u128::from(setup.threshold.0) * u128::from(mhz) / 1000,
        output = output.display(),
    ))
}

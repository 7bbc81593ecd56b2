//! Writes the seeds of every target to `fuzz/corpus`, where `cargo fuzz run TARGET` looks for them.

use std::fs;
use std::io::Result;
use std::path::Path;

fn main() -> Result<()> {
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../fuzz/corpus");
    for target in pagemill_fuzz::TARGETS {
        let directory = corpus.join(target.name);
        fs::create_dir_all(&directory)?;
        for (number, seed) in (target.seeds)().iter().enumerate() {
            fs::write(directory.join(format!("seed-{number}")), seed)?;
        }
    }
    Ok(())
}

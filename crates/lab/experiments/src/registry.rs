//! The experiments with tables of their own, by name: whose claims they are of, and what they come to.

use crate::coverage::{CBMM, COLLOID, MOCA, STUDY};
use crate::reproduce::chosen::OTHERS;
use crate::reproduce::keep::CellKey;
use crate::reproduce::series::Finished;
use crate::tabled::{Outcomes, Tables};
use crate::{colloid, fragmentation, huge_pages, huge_slices, moca, overhead};

/// The source of an experiment with tables of its own; one that compares with no publication has none.
pub(crate) fn source(experiment: &str) -> Option<&'static str> {
    match experiment {
        moca::NAME => Some(MOCA),
        huge_pages::NAME | huge_slices::NAME => Some(CBMM),
        fragmentation::NAME => Some(STUDY),
        colloid::NAME => Some(COLLOID),
        _ => None,
    }
}

/// Those of which nothing ran.
pub(crate) fn nothing(name: &str) -> Option<Box<dyn Tables>> {
    Some(match name {
        moca::NAME => Box::new(moca::Outcome::nothing()),
        huge_slices::NAME => Box::new(huge_slices::Outcome::of(
            huge_slices::Options::new(false, None, 1),
            &[],
            Vec::new(),
        )),
        huge_pages::NAME => Box::new(huge_pages::Outcome::nothing()),
        fragmentation::NAME => Box::new(fragmentation::Outcome::nothing()),
        _ => return None,
    })
}

/// What cells that were run anywhere came to, in the order in which a run has them.
pub fn collected(
    of: impl Fn(&str) -> Option<(Vec<Finished>, CellKey)>,
    interrupted: bool,
) -> Outcomes {
    let mut outcomes = Outcomes::default();
    for name in OTHERS {
        let Some((cells, of)) = of(name) else { continue };
        let tables: Box<dyn Tables> = match name {
            overhead::NAME => Box::new(overhead::Outcome::collected(&cells, of)),
            moca::NAME => match moca::Outcome::collected(&cells, of, interrupted) {
                Ok(outcome) => Box::new(outcome),
                Err(_) => continue,
            },
            huge_slices::NAME => Box::new(huge_slices::Outcome::collected(&cells, of)),
            huge_pages::NAME => Box::new(huge_pages::Outcome::collected(&cells, of, interrupted)),
            fragmentation::NAME => {
                Box::new(fragmentation::Outcome::collected(&cells, of, interrupted))
            }
            _ => continue,
        };
        outcomes.tables.push((name, tables));
    }
    outcomes
}

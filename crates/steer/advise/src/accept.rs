//! Whether the command can be judged by a run of it, and how a run failed.

use std::time::Duration;

use anyhow::{Result, bail, ensure};
use pagemill_model::Nanos;

use crate::observation::bytes;
use crate::stall::IDLE;
use crate::trial::{Ending, Run, TrialSetup};

/// Whether the command can be judged by runs of it.
pub(crate) fn accept(run: &Run, stage: &TrialSetup<'_>, limit: Duration) -> Result<()> {
    let name = stage.target.path.display();
    match &run.ending {
        Ending::TooLong => bail!(
            "{name} still ran after {} and was ended; nothing was tried (give it time: --within; a server: --load \
             'CLIENT')",
            Nanos::from(limit).to_string().trim()
        ),
        Ending::Stopped => bail!(
            "{name} waits for what somebody types at the terminal, which it cannot have here; nothing was tried (give \
             a command that ends by itself: its batch mode, or input from a file)"
        ),
        Ending::Idle => bail!(
            "{name} did nothing for {} s and was ended; nothing was tried (give a command that works and ends by \
             itself; if it does, say how long it may take: --within 10m; a server: --load 'CLIENT')",
            IDLE.as_secs()
        ),
        Ending::Status(status) if !status.success() => {
            let said = match run.complaint.as_str() {
                "" => String::new(),
                text => format!(": {text}"),
            };
            let text = run.complaint.to_lowercase();
            let tty = ["terminal", "tty", "ioctl"].iter().any(|word| text.contains(word));
            let way = if tty {
                " (it seems to need a terminal; standard input is empty here: run it in its batch mode, or under \
                 script(1))"
            } else {
                " (make it work alone first: its standard input is empty here)"
            };
            bail!("{name} fails as it is, {status}{said}; nothing was tried{way}");
        }
        Ending::Starved { limit } => bail!(
            "{name} fails as it is, {}; nothing was tried (give it more memory, or less to do)",
            starved(*limit)
        ),
        Ending::Failed(how) => {
            let said = match run.complaint.as_str() {
                "" => String::new(),
                text => format!(" (its last words: {text})"),
            };
            bail!("{name} cannot be asked as it is: {how}{said}; nothing was tried");
        }
        Ending::Status(_) | Ending::Served => {}
    }
    ensure!(
        !run.left,
        "{name} goes on in the background, where its memory and time are not its caller's; that was ended (have it \
         stay \
         in the foreground; a server: --load 'CLIENT')"
    );
    if let Some(metric) = stage.metric {
        let (who, way) = match stage.load {
            Some(load) => {
                let longest = load.time.as_secs_f64();
                ("the client".into(), format!("; it is ended after {longest} s, --for gives more"))
            }
            None => (name.to_string(), String::new()),
        };
        ensure!(
            run.figures.metric.is_some(),
            "nothing that {who} prints matches the metric {:?} with a number (its group is to be the number{way})",
            metric.as_str()
        );
    }
    Ok(())
}

/// How a run failed, if it did.
pub(crate) fn failure(run: &Run) -> Option<String> {
    match &run.ending {
        Ending::Stopped => Some("a wish for the terminal".into()),
        Ending::Idle => Some("a rest without end".into()),
        Ending::TooLong => Some("no end in five times as long as it takes as it is".into()),
        Ending::Status(status) if !status.success() => Some(status.to_string()),
        Ending::Failed(how) => Some(how.clone()),
        Ending::Starved { limit } => Some(starved(*limit)),
        _ if run.left => Some("something that goes on in the background".into()),
        Ending::Status(_) | Ending::Served => None,
    }
}

/// That something of it was killed for want of memory.
fn starved(limit: Option<u64>) -> String {
    match limit {
        Some(limit) => {
            format!(
                "killed for want of memory, of which its control group may have {}",
                bytes(limit as f64)
            )
        }
        None => "killed for want of memory".into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn want_of_memory_is_told_with_its_limit_where_there_is_one() {
        assert!(
            starved(Some(192 << 20)).contains("want of memory")
                && starved(Some(192 << 20)).contains("192.0 MiB")
        );
        assert_eq!(starved(None), "killed for want of memory");
    }
}

//! Settings on loan to several at once, in and out of PID and time namespaces, as in containers that share `/run` and
//! `/sys`: the last one that leaves gives back, and none of them before.

#![expect(clippy::unwrap_used, reason = "a failed set-up fails the test")]

mod support;

use std::process::{Child, Command, Stdio};

use pagemill_kernel::{Linux, process::signal};
use pagemill_model::Pid;
use support::{Machine, pagemill, ran, skip, until};

/// Where a borrower runs: here, or in namespaces of its own, where it and another one have the same number.
const PLACES: [&[&str]; 3] =
    [&[], &["--pid", "--fork", "--mount-proc"], &["--pid", "--time", "--fork", "--mount-proc"]];

const SET: &str = "[always] madvise never";

const ORDERS: [[usize; 3]; 6] = [[0, 1, 2], [0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]];

/// `pagemill` with these words, in that place.
fn in_place(machine: &Machine, place: &[&str], words: &[&str]) -> Command {
    let own = pagemill();
    let mut command =
        Command::new(if place.is_empty() { own.get_program() } else { "unshare".as_ref() });
    if !place.is_empty() {
        command.args(place).arg("--").arg(own.get_program());
    }
    for (name, value) in own.get_envs() {
        match value {
            Some(value) => command.env(name, value),
            None => command.env_remove(name),
        };
    }
    command.args(words).env("PAGEMILL_ROOT", machine.root());
    command
}

/// One that has the setting on loan.
struct Borrower {
    started: Child,
    /// pagemill itself, by its number here.
    pid: Pid,
}

impl Borrower {
    fn start(machine: &Machine, place: &[&str]) -> Self {
        let words = ["run", "--huge", "linux-always", "--", "sh", "-c", "echo; exec sleep 1000"];
        let mut command = in_place(machine, place, &words);
        let mut started = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
        std::io::Read::read_exact(started.stdout.as_mut().unwrap(), &mut [0]).unwrap();
        let pid = match place {
            [] => Pid(started.id()),
            _ => Linux::live().children(Pid(started.id())).unwrap()[0],
        };
        Self { started, pid }
    }

    /// Ends it by this signal, and its program.
    fn end(mut self, number: i32) {
        let program = Linux::live().children(self.pid).unwrap();
        signal::send(self.pid, number).unwrap();
        self.started.wait().unwrap();
        for process in program {
            // It has ended with it, or is nobody's concern any more.
            let _ = signal::send(process, signal::KILL);
        }
    }
}

fn can_unshare() -> bool {
    PLACES.iter().filter(|place| !place.is_empty()).all(|place| {
        Command::new("unshare")
            .args(*place)
            .arg("true")
            .stderr(Stdio::null())
            .status()
            .is_ok_and(|it| it.success())
    })
}

/// A borrower was known by its number and its start time: to a reader in another namespace a living one was dead, and
/// what it had set was "restored" under it.
#[test]
fn three_borrowers_in_and_out_of_namespaces_end_in_every_order() {
    if !can_unshare() {
        return skip("unshare(1) makes no PID and time namespaces here").unwrap_or(());
    }
    for number in [signal::TERMINATE, signal::KILL] {
        for order in ORDERS {
            let machine = Machine::new();
            let mut borrowers = PLACES.map(|place| {
                let borrower = Borrower::start(&machine, place);
                assert_eq!(machine.thp(), "always");
                // As the kernel shows what was written.
                let file = machine.root().join("sys/kernel/mm/transparent_hugepage/enabled");
                std::fs::write(file, SET).unwrap();
                Some(borrower)
            });
            for (ended, &who) in order.iter().enumerate() {
                borrowers[who].take().unwrap().end(number);
                if ended == 2 {
                    break;
                }
                assert_eq!(machine.thp(), SET, "{order:?}, {ended}, {number}: one is there still");
                for place in PLACES {
                    let words = ["run", "--huge", "linux-never", "--", "true"];
                    let passer = ran(&mut in_place(&machine, place, &words));
                    assert_eq!(passer.code(), Some(0), "{passer:?}");
                    assert_eq!(
                        machine.thp(),
                        SET,
                        "{order:?}, {ended}, {number}, {place:?}: {passer:?}"
                    );
                }
            }
            if number == signal::KILL {
                let words = ["run", "--huge", "linux-never", "--", "true"];
                let next = ran(&mut in_place(&machine, PLACES[order[0]], &words));
                assert!(next.err.contains("restored"), "{order:?}: {next:?}");
            }
            until("the setting to be as it was", || machine.thp() == "madvise");
        }
    }
}

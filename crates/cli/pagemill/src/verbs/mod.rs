//! One file a verb. A verb parses nothing and prints its own result; what it computes lives below.
//!
//! What the command line has of a verb is its file, its `mod` and its row here.

pub mod advise;
pub mod collect;
pub mod compare;
pub mod doctor;
pub mod export;
pub mod frag;
pub mod generate;
pub mod heap;
pub mod hugepages;
pub mod live;
pub mod plan;
pub mod record;
pub mod report;
pub mod reproduce;
pub mod run;
pub mod simulate;
pub mod tier;
#[cfg(target_arch = "x86_64")]
pub mod validate;
pub mod workload;

/// The verbs by what they are for, in the order of `--help`: of each what it is for, its module, and its name as a
/// type, whose words are its name on the command line. One that `wraps` a command does so where these words are on its
/// command line; one that restores no settings first, which a killed pagemill may have left changed, says so.
macro_rules! verbs {
    ($command:ident: $($title:literal {
        $($(#[doc = $about:literal])+ $(#[cfg($only:meta)])? $module:ident $verb:ident $(($given:ident))?
            $(wraps $words:tt)? $(restores $restores:literal)?,)+
    })+) => {
        /// The verbs.
        #[derive(Debug, clap::Subcommand)]
        pub enum Verb {
            $($($(#[doc = $about])+ $(#[cfg($only)])? $verb(Box<$module::Arguments>),)+)+
        }

        impl Verb {
            /// Runs the verb and says how it ended; `command` is the command line that it is of.
            pub fn run(self, $command: clap::Command) -> anyhow::Result<pagemill_launch::exit::Exit> {
                match self {
                    $($($(#[cfg($only)])? Self::$verb(of) => $module::run(&of $(, $given)?),)+)+
                }
            }

            /// Whether it is to find settings restored that a killed pagemill left changed.
            pub fn restores(&self) -> bool {
                match self {
                    $($($(Self::$verb(_) => $restores,)?)+)+
                    _ => true,
                }
            }
        }

        /// Those that run a command, and the words that stand on their command line then.
        pub const WRAPPERS: &[(&str, &[&str])] = &[$($($((stringify!($module), &$words),)?)+)+];

        /// What they are for, and their names.
        pub const GROUPS: &[(&str, &[&str])] =
            &[$(($title, &[$($(#[cfg($only)])? stringify!($module),)+]),)+];
    };
}

verbs! {
    command:
    "See" {
        /// Say what this machine and user can do, and how to mend what is missing
        doctor Doctor restores false,
        /// Show a program's memory while it runs, on one screen
        live Live wraps ["--"],
        /// Record a program's memory over time
        record Record wraps ["--"],
        /// Show what a recording says: text, JSON or one HTML file
        report Report,
        /// Show what changed from one recording to another
        compare Compare,
        /// Write a recording in a format of another tool, or what runs as metrics
        export Export,
        /// Show the heap of a running program, without stopping it
        heap Heap,
        /// Show how much of a program's memory is on huge pages
        hugepages Hugepages,
        /// Check the pages of `record --with accesses` against every access of the same run
        #[cfg(target_arch = "x86_64")]
        validate Validate,
    }
    "Score" {
        /// Say which lever helps a program, and by how much
        advise Advise,
        /// Say which memory is worth huge pages, how much, and why
        plan Plan,
        /// Show how fragmented free memory is, fragment it on purpose, or mend it
        frag Frag wraps ["induce", "--"],
    }
    "Steer" {
        /// Run a program, unchanged, on the compacting heap, or under a huge page policy
        run Run wraps [],
        /// Place the memory of running programs on two memory tiers
        tier Tier restores false,
    }
    "Research" {
        /// Run published experiments again and show their figures beside ours
        reproduce Reproduce,
        /// Gather the cells of a run on many machines, as one file and as tables
        collect Collect,
        /// Run a workload on a simulated machine with two memory tiers
        simulate Simulate,
        /// Run a built-in workload
        workload Workload,
    }
    "Besides" {
        /// Print the man pages or a shell's completions
        generate Generate(command) restores false,
    }
}

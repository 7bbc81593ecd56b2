//! Programs of others under `record --with accesses`: with rings of drivers, low limits, other users, memory that two
//! processes share, PID namespaces; and a recording that fails in every way. The program does what it does unrecorded.

#![cfg(target_arch = "x86_64")]
#![expect(clippy::unwrap_used, reason = "a failed set-up fails the test")]

mod support;

use std::path::Path;
use std::process::{Child, Command, Stdio};

use serde_json::Value;
use support::traced::{can_trace, children, recorder, send, text};
use support::{compiled, pagemill, ran, skip, until};
use tempfile::TempDir;

use pagemill_model::Pid;

fn has(command: &str) -> bool {
    let there = Command::new("sh").args(["-c", &format!("command -v {command}")]).output().unwrap();
    if !there.status.success() {
        let _: Option<()> = skip(&format!("there is no {command}"));
    }
    there.status.success()
}

fn is_root() -> bool {
    let root = user() == 0;
    if !root {
        let _: Option<()> = skip("this needs root");
    }
    root
}

fn user() -> u32 {
    use std::os::unix::fs::MetadataExt as _;
    std::fs::metadata("/proc/self").unwrap().uid()
}

fn report(recording: &Path) -> Value {
    let shown = ran(pagemill().args(["report", "--json"]).arg(recording));
    serde_json::from_str(&shown.out).unwrap_or_else(|error| panic!("{error}: {shown:?}"))
}

fn untraced(recording: &Path) -> String {
    report(recording)["meta"]["accesses"]["untraced"].to_string()
}

/// Reads a file by a ring of its own for more than a second, so that many intervals end meanwhile.
const URING: &str = r#"
#include <fcntl.h>
#include <liburing.h>
#include <stdio.h>
#include <time.h>
int main(void) {
    struct io_uring ring;
    if (io_uring_queue_init(64, &ring, 0)) return 77;
    int file = open("/proc/self/exe", O_RDONLY);
    char bytes[4096];
    struct timespec begin, now;
    clock_gettime(CLOCK_MONOTONIC, &begin);
    do {
        struct io_uring_sqe *entry = io_uring_get_sqe(&ring);
        struct io_uring_cqe *done;
        io_uring_prep_read(entry, file, bytes, 100, 0);
        io_uring_submit(&ring);
        if (io_uring_wait_cqe(&ring, &done) || done->res != 100 || bytes[1] != 'E') return 1;
        io_uring_cqe_seen(&ring, done);
        bytes[1] = 0;
        clock_gettime(CLOCK_MONOTONIC, &now);
    } while (now.tv_sec - begin.tv_sec < 2);
    puts("ok");
    return 5;
}
"#;

/// Receives what it sends on the loopback device by a ring of the kernel's.
const PACKETS: &str = r#"
#include <arpa/inet.h>
#include <linux/if_packet.h>
#include <net/ethernet.h>
#include <net/if.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>
int main(void) {
    int s = socket(AF_PACKET, SOCK_RAW, htons(ETH_P_ALL)), version = TPACKET_V3;
    if (s < 0 || setsockopt(s, SOL_PACKET, PACKET_VERSION, &version, sizeof version)) return 77;
    struct tpacket_req3 req = { .tp_block_size = 1 << 16, .tp_block_nr = 8,
        .tp_frame_size = 2048, .tp_frame_nr = 256, .tp_retire_blk_tov = 10 };
    if (setsockopt(s, SOL_PACKET, PACKET_RX_RING, &req, sizeof req)) return 77;
    char *ring = mmap(0, 8 << 16, PROT_READ | PROT_WRITE, MAP_SHARED, s, 0);
    struct sockaddr_ll to = { .sll_family = AF_PACKET, .sll_protocol = htons(ETH_P_ALL),
        .sll_ifindex = if_nametoindex("lo") };
    if (ring == MAP_FAILED || !to.sll_ifindex || bind(s, (void *)&to, sizeof to)) return 77;
    int u = socket(AF_INET, SOCK_DGRAM, 0);
    struct sockaddr_in a = { .sin_family = AF_INET, .sin_port = htons(9), .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
    struct timespec begin, now;
    clock_gettime(CLOCK_MONOTONIC, &begin);
    long got = 0; unsigned block = 0;
    do {
        sendto(u, "x", 1, 0, (void *)&a, sizeof a);
        struct tpacket_block_desc *d = (void *)(ring + ((size_t)block << 16));
        struct pollfd p = { s, POLLIN, 0 };
        if (!(d->hdr.bh1.block_status & TP_STATUS_USER)) poll(&p, 1, 20);
        if (d->hdr.bh1.block_status & TP_STATUS_USER) {
                got += d->hdr.bh1.num_pkts;
                d->hdr.bh1.block_status = TP_STATUS_KERNEL;
                block = (block + 1) % 8;
            }
        clock_gettime(CLOCK_MONOTONIC, &now);
    } while (now.tv_sec - begin.tv_sec < 2 || got < 50);
    puts("ok");
    return 5;
}
"#;

/// A ring's pages are put in when it is mapped, and no fault brings them back: nobody may drop them. The program got
/// SIGBUS.
#[test]
fn rings_of_drivers_are_left_as_they_are() {
    let room = tempfile::tempdir().unwrap();
    if !can_trace(&room) {
        return;
    }
    let programs = [
        ("uring", URING, &["-O1", "-luring"][..], "io_uring"),
        ("packets", PACKETS, &["-O1"][..], "socket:"),
    ];
    for (name, source, flags, told) in programs {
        let Some(program) = compiled(&room, name, source, flags) else { continue };
        if Command::new(&program).stdout(Stdio::null()).status().unwrap().code() == Some(77) {
            let _: Option<()> = skip(&format!("{name}: this user or kernel has no such ring"));
            continue;
        }
        let recording = room.path().join("rec");
        let run = ran(&mut recorder(&[], &recording, &[text(&program)]));
        assert_eq!((run.code(), run.out.as_str()), (Some(5), "ok\n"), "{run:?}");
        let told_of = untraced(&recording);
        assert!(told_of.contains(told) && told_of.contains("memory of a driver"), "{told_of}");
    }
}

/// Its job is a forked child whose registered buffers the kernel holds: they may not be replaced by others either.
#[test]
fn transfers_into_registered_buffers_arrive() {
    let room = tempfile::tempdir().unwrap();
    if !can_trace(&room) || !has("fio") {
        return;
    }
    let file = room.path().join("data");
    let name = format!("--filename={}", text(&file));
    // Where its state goes.
    let aux = format!("--aux-path={}", text(room.path()));
    let fio = |more: &'static [&'static str]| -> Vec<&str> {
        let mut words = vec!["fio", "--name=a", "--ioengine=io_uring", "--rw=randrw", "--size=4M"];
        words.extend(["--time_based", "--runtime=2", "--verify=crc32c", &name, &aux]);
        words.extend(more);
        words
    };
    for more in [&[][..], &["--fixedbufs", "--registerfiles"][..]] {
        let words = fio(more);
        let native = ran(Command::new(words[0]).args(&words[1..]));
        if native.code() != Some(0) {
            let _: Option<()> = skip(&format!("fio {more:?}: {}", native.err));
            continue;
        }
        let run = ran(&mut recorder(&[], &room.path().join("rec"), &words));
        assert_eq!(run.code(), Some(0), "{more:?}: {run:?}");
    }
}

/// Forks while the kernel holds registered buffers: what is written to them afterwards is what it transfers, and the
/// child sees none of it.
const FIXED: &str = r#"
#include <fcntl.h>
#include <liburing.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>
enum { BYTES = 65536 };
static struct io_uring ring;
static int transfer(int file, char *at, int number) {
    struct io_uring_sqe *entry = io_uring_get_sqe(&ring);
    struct io_uring_cqe *done;
    if (number) io_uring_prep_read_fixed(entry, file, at, BYTES, 0, number);
    else io_uring_prep_write_fixed(entry, file, at, BYTES, 0, number);
    io_uring_submit(&ring);
    if (io_uring_wait_cqe(&ring, &done) || done->res != BYTES) return 0;
    io_uring_cqe_seen(&ring, done);
    return 1;
}
static int all(const char *at, char value) {
    for (int i = 0; i < BYTES; i++) if (at[i] != value) return 0;
    return 1;
}
int main(int count, char **words) {
    char *buffers[2];
    for (int i = 0; i < 2; i++) buffers[i] = mmap(0, BYTES, 3, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    struct iovec vector[2] = {{buffers[0], BYTES}, {buffers[1], BYTES}};
    if (io_uring_queue_init(8, &ring, 0) || io_uring_register_buffers(&ring, vector, 2)) return 77;
    int file = open(words[1], O_RDWR | O_CREAT | O_TRUNC, 0600), tell[2];
    char *other = malloc(BYTES);
    for (int round = 1; round < 100; round++) {
        memset(buffers[0], round, BYTES);
        memset(other, round, BYTES);
        pid_t child = 0;
        if (round % 10 == 0) {
            if (pipe(tell)) return 1;
            child = fork();
            if (!child) {
                char word;
                close(tell[1]);
                if (read(tell[0], &word, 1)) _exit(2);
                if (!all(buffers[0], round) || !all(buffers[1], round - 1) || !all(other, round)) _exit(3);
                memset(buffers[0], 99, BYTES);
                memset(other, 99, BYTES);
                _exit(all(buffers[0], 99) && all(other, 99) ? 0 : 4);
            }
            close(tell[0]);
            memset(buffers[0], -round, BYTES);
            memset(other, -round, BYTES);
        }
        char value = child ? -round : round;
        if (!transfer(file, buffers[0], 0) || !transfer(file, buffers[1], 1)) return 5;
        if (!all(buffers[1], value)) return printf("round %d: the kernel has other pages\n", round), 6;
        if (!child) continue;
        int status;
        close(tell[1]);
        if (waitpid(child, &status, 0) != child || status) return printf("child %x\n", status), 7;
        if (!all(other, value)) return 8;
        memset(buffers[1], round, BYTES);
    }
    puts("ok");
    return 5;
}
"#;

#[test]
fn registered_buffers_stay_where_they_are_when_their_owner_forks() {
    let room = tempfile::tempdir().unwrap();
    let Some(program) = compiled(&room, "fixed", FIXED, &["-O1", "-luring"]) else { return };
    let file = room.path().join("file");
    let words = [text(&program), text(&file)];
    let native = ran(Command::new(words[0]).arg(words[1]));
    if native.code() == Some(77) || !can_trace(&room) {
        let _: Option<()> = skip("this user or kernel has no such ring");
        return;
    }
    assert_eq!((native.code(), native.out.as_str()), (Some(5), "ok\n"), "{native:?}");
    let run = ran(&mut recorder(&[], &room.path().join("rec"), &words));
    assert_eq!((run.code(), run.out.as_str()), (Some(5), "ok\n"), "{run:?}");
}

/// A hard limit of descriptors below ours, which only CAP_SYS_RESOURCE may lift, and other users: the next program
/// slept for ever in its first call that a filter notifies.
#[test]
fn a_program_with_a_low_limit_or_another_user_runs_to_its_end() {
    let room = tempfile::tempdir().unwrap();
    if !can_trace(&room) || !has("setpriv") || !is_root() {
        return;
    }
    let recording = room.path().join("rec");
    let less = ["setpriv", "--bounding-set", "-sys_resource", "--inh-caps", "-sys_resource"];
    let close = "perl -MPOSIX -e 'POSIX::close($_) for 3..63; my @a = map { $_ x 3000 } 1..3000; print scalar(@a)'";
    for (script, traced) in [
        (format!("ulimit -n 64; exec {close}"), true),
        (format!("ulimit -n 64; {close}; exit 3"), true),
        (format!("ulimit -n 16; exec {close}"), false),
        (format!("setpriv --reuid 65534 {close}; exit 3"), true),
        // It may not install the filter that keeps ours open.
        (format!("ulimit -n 64; setpriv --reuid 65534 {close}; exit 3"), false),
    ] {
        let status = if script.ends_with("exit 3") { 3 } else { 0 };
        let run = ran(&mut recorder(&less, &recording, &["sh", "-c", &script]));
        assert_eq!((run.code(), run.out.as_str()), (Some(status), "3000"), "{script}: {run:?}");
        let accesses = report(&recording);
        let pages = accesses["accesses"]["total"]["pages"].as_u64().unwrap();
        // 9 MB and the program itself.
        assert_eq!(pages > 3000, traced, "{script}: {pages} pages, {}", untraced(&recording));
        assert_eq!(untraced(&recording).contains("descriptors"), !traced, "{script}");
    }
}

/// Ours were opened below the program's limit before they were moved above it: some could not be, the others were left
/// open, and the loader of the next program found no descriptor for its libraries.
#[test]
fn a_program_finds_every_descriptor_that_its_limit_allows() {
    let room = tempfile::tempdir().unwrap();
    if !can_trace(&room) {
        return;
    }
    let recording = room.path().join("rec");
    // The loader needs one beside the standard streams. A hard limit may be lifted by CAP_SYS_RESOURCE only, and where
    // it is not nothing is traced.
    for limit in ["-Sn 4", "-Sn 6", "-n 4", "-n 6", "-n 8"] {
        let script = format!("ulimit {limit}; exec ls /dev/null");
        let run = ran(&mut recorder(&[], &recording, &["sh", "-c", &script]));
        assert_eq!((run.code(), run.out.as_str()), (Some(0), "/dev/null\n"), "{script}: {run:?}");
        let told = untraced(&recording);
        assert!(!limit.starts_with("-S") || !told.contains("descriptors"), "{script}: {told}");
    }
}

/// A child that shares the memory and ends by SIGCHLD: the kernel says it was forked. It was taken for one with a copy.
const SHARES: &str = r#"
#define _GNU_SOURCE
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>
enum { PAGES = 500, PAGE = 4096 };
static char *block;
static volatile int turn;
static int work(void *unused) {
    for (int round = 1; round <= 40; round++) {
        while (turn != 2 * round - 1) usleep(500);
        for (int i = 0; i < PAGES; i++) if (block[i * PAGE] != round) exit(1);
        char *other = mmap(0, PAGES * PAGE, 3, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        memset(other, round, PAGES * PAGE);
        memcpy(block, other, PAGES * PAGE);
        munmap(other, PAGES * PAGE);
        if (round % 8 == 0) { madvise(block, PAGES * PAGE, MADV_DONTNEED); if (block[PAGE]) _exit(2); }
        memset(block, -round, PAGES * PAGE);
        turn++;
    }
    while (turn != 2 * 40 + 1) usleep(500);
    _exit(4);
}
int main(void) {
    static char stack[1 << 16];
    if (!fork()) {
        block = mmap(0, PAGES * PAGE, 3, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        int flags = CLONE_VM | CLONE_FILES | CLONE_FS | CLONE_SIGHAND | SIGCHLD;
            int child = clone(work, stack + sizeof stack, flags, 0), status;
        for (int round = 1; round <= 40; round++) {
            memset(block, round, PAGES * PAGE);
            turn++;
            while (turn != 2 * round) if (usleep(500), waitpid(child, &status, WNOHANG)) exit(9);
            for (int i = 0; i < PAGES; i++) if (block[i * PAGE] != (char)-round) exit(8);
            if (round % 10 == 0) {
                    pid_t copy = fork();
                    if (!copy) { memset(block, 0, PAGES * PAGE); _exit(6); }
                    waitpid(copy, &status, 0);
                    if (WEXITSTATUS(status) != 6) exit(7);
                }
        }
        turn++;
        waitpid(child, &status, 0);
        exit(WEXITSTATUS(status) + 1);
    }
    int status;
    wait(&status);
    printf("%d\n", WEXITSTATUS(status));
    return 3;
}
"#;

#[test]
fn two_processes_may_share_one_memory() {
    let room = tempfile::tempdir().unwrap();
    let Some(program) = compiled(&room, "shares", SHARES, &["-O1"]) else { return };
    if !can_trace(&room) {
        return;
    }
    let run = ran(&mut recorder(&[], &room.path().join("rec"), &[text(&program)]));
    assert_eq!((run.code(), run.out.as_str()), (Some(3), "5\n"), "{run:?}");
    if has("stress-ng") {
        let words = ["stress-ng", "--vm-rw", "1", "--vm-rw-bytes", "16m", "-t", "3", "--verify"];
        let run = ran(&mut recorder(&[], &room.path().join("rec"), &words));
        assert_eq!(run.code(), Some(0), "{run:?}");
    }
}

/// Two threads and the first check and change memory, map and unmap it, and fork, until a file appears.
const WORKS: &str = r#"
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>
enum { PAGES = 800, PAGE = 4096 };
static volatile int wrong, stop, number, ended;
static char *map(int pages) { return mmap(0, pages * PAGE, 3, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0); }
static void *work(void *unused) {
    while (!stop) {
        char *at = map(20);
        for (int i = 0; i < 20; i++) { if (at[i * PAGE]) wrong |= 1; at[i * PAGE] = 7; }
        munmap(at, 20 * PAGE);
    }
    return 0;
}
int main(int count, char **words) {
    pthread_t threads[2];
    char *block = map(PAGES), mark = 0;
    alarm(300);
    for (int i = 0; i < 2; i++) pthread_create(threads + i, 0, work, 0);
    for (int round = 0; access(words[1], F_OK); round++) {
        for (int i = 0; i < PAGES; i++) { if (block[i * PAGE] != mark) wrong |= 2; block[i * PAGE] = mark + 1; }
        mark++;
        if (round % 16 == 0) {
            int status = 0;
            pid_t child = fork();
            if (!child) { memset(block, 99, PAGES * PAGE); _exit(block[5 * PAGE] == 99 ? 6 : 5); }
            if (child < 0 || waitpid(child, &status, 0) != child || status != 6 << 8) {
                wrong |= 4;
                number = child < 0 ? -errno : child;
                ended = status;
            }
            madvise(block, PAGES * PAGE, MADV_DONTNEED);
            if (block[3 * PAGE]) wrong |= 8;
            mark = 0;
        }
        if (round == 50) { FILE *ready = fopen(words[2], "w"); fclose(ready); }
        usleep(200);
    }
    stop = 1;
    for (int i = 0; i < 2; i++) pthread_join(threads[i], 0);
    FILE *said = fopen(words[3], "w");
    fprintf(said, "wrong %d, fork %d ended %x\n", wrong, number, ended);
    fclose(said);
    return 7;
}
"#;

/// A program at work under a recorder.
struct AtWork {
    room: TempDir,
    recorder: Child,
    tracer: Pid,
    program: Pid,
    /// Its injector and its mapper.
    helpers: [Pid; 2],
}

impl AtWork {
    fn start(variables: &[(&str, &str)]) -> Option<Self> {
        let room = tempfile::tempdir().unwrap();
        let program = compiled(&room, "works", WORKS, &["-O1", "-pthread"])?;
        if !can_trace(&room) {
            return None;
        }
        let path = |name: &str| room.path().join(name);
        let (stop, ready, said) = (path("stop"), path("ready"), path("said"));
        let words = [text(&program), text(&stop), text(&ready), text(&said)];
        let errors = std::fs::File::create(path("errors")).unwrap();
        let recorder = recorder(&[], &path("rec"), &words)
            .envs(variables.iter().copied())
            .stderr(errors)
            .spawn()
            .unwrap();
        until("the program to be at work", || ready.exists());
        let executes = |pid: &Pid, file: &Path| {
            std::fs::read_link(format!("/proc/{pid}/exe")).is_ok_and(|exe| exe == file)
        };
        let program_file = program.canonicalize().unwrap();
        // What traces is the recorder's child, its program that one's.
        let tracer = children(Pid(recorder.id())).first().copied().unwrap_or_default();
        let program = children(tracer).into_iter().find(|pid| executes(pid, &program_file));
        let Some(program) = program else {
            // The recorder has ended, which is for the test to judge.
            return Some(Self { room, recorder, tracer, program: Pid(0), helpers: [Pid(0); 2] });
        };
        // Forked children are traced, and come and go; these are the first.
        let mut helpers = children(program);
        helpers.sort_unstable();
        let &[injector, mapper, ..] = helpers.as_slice() else { panic!("{helpers:?}") };
        Some(Self { room, recorder, tracer, program, helpers: [injector, mapper] })
    }

    /// Has the program end; how the recorder ended, and what it said.
    fn end(mut self) -> (Option<i32>, String) {
        let path = |name: &str| self.room.path().join(name);
        std::fs::write(path("stop"), "").unwrap();
        let said = path("said");
        until("the program to end", || {
            std::fs::read_to_string(&said).is_ok_and(|said| !said.is_empty())
        });
        let wrong = std::fs::read_to_string(&said).unwrap();
        let errors = std::fs::read_to_string(path("errors")).unwrap();
        assert_eq!(wrong, "wrong 0, fork 0 ended 0\n", "{:?}: {errors}", self.helpers);
        let code = self.recorder.wait().unwrap().code();
        (code, std::fs::read_to_string(path("errors")).unwrap())
    }
}

fn a_while() {
    std::thread::sleep(std::time::Duration::from_secs(2));
}

#[test]
fn what_runs_for_us_in_a_program_may_be_stopped() {
    for which in [&[0][..], &[1], &[0, 1]] {
        let Some(run) = AtWork::start(&[]) else { return };
        which.iter().for_each(|&one| send("-STOP", run.helpers[one]));
        a_while();
        let (code, said) = run.end();
        assert_eq!(code, Some(7), "{said}");
        assert!(!said.contains("let go"), "{said}");
    }
}

/// The program is let go, its memory its own again; that is said, and its own status is returned.
#[test]
fn what_runs_for_us_in_a_program_may_be_killed() {
    for which in [&[0][..], &[1], &[0, 1]] {
        let Some(run) = AtWork::start(&[]) else { return };
        which.iter().for_each(|&one| send("-KILL", run.helpers[one]));
        a_while();
        let (program, recording) = (run.program, run.room.path().join("rec"));
        until("the program to be let go", || {
            let maps = std::fs::read_to_string(format!("/proc/{program}/maps")).unwrap();
            !maps.contains("/memfd:pagemill") || !maps.contains("rw-s")
        });
        assert!(recording.exists());
        let (code, said) = run.end();
        assert_eq!(code, Some(7), "{said}");
        assert!(said.contains("let go and runs on"), "{said}");
    }
}

#[test]
fn a_recorder_may_be_stopped_and_continued() {
    let Some(run) = AtWork::start(&[]) else { return };
    send("-STOP", Pid(run.recorder.id()));
    a_while();
    send("-CONT", Pid(run.recorder.id()));
    assert_eq!(run.end().0, Some(7));
}

/// What traces goes on without the recorder, to let the program go and finish the recording.
#[test]
fn a_killed_recorder_leaves_the_program_as_it_is_and_a_whole_recording() {
    let Some(run) = AtWork::start(&[]) else { return };
    let maps = || std::fs::read_to_string(format!("/proc/{}/maps", run.program)).unwrap();
    assert!(maps().contains("/memfd:pagemill"), "{}", maps());
    send("-KILL", Pid(run.recorder.id()));
    until("the program's memory to be its own", || !maps().contains("/memfd:pagemill"));
    until("the tracer to end", || std::fs::read_link(format!("/proc/{}/exe", run.tracer)).is_err());
    let recorded = report(&run.room.path().join("rec"));
    assert!(recorded["accesses"]["intervals"].as_u64().unwrap() > 0, "{recorded}");
    assert_eq!(run.end().0, None);
}

#[test]
fn a_killed_tracer_leaves_the_program_as_it_is() {
    let Some(run) = AtWork::start(&[]) else { return };
    send("-KILL", run.tracer);
    a_while();
    assert_eq!(run.end().0, None);
}

#[test]
fn a_recorder_that_stays_stopped_holds_up_nobody() {
    let Some(run) = AtWork::start(&[]) else { return };
    send("-STOP", Pid(run.recorder.id()));
    std::fs::write(run.room.path().join("stop"), "").unwrap();
    let said = run.room.path().join("said");
    until("the program to end", || {
        std::fs::read_to_string(&said).is_ok_and(|said| !said.is_empty())
    });
    send("-CONT", Pid(run.recorder.id()));
    assert_eq!(run.end().0, Some(7));
}

/// Without its parent, which a stop key would stop, too.
#[test]
fn a_tracer_that_stays_stopped_is_ended_and_the_program_goes_on() {
    if cfg!(not(debug_assertions)) {
        let _: Option<()> = skip("only a build for tests has a patience of its own");
        return;
    }
    let Some(mut run) = AtWork::start(&[("PAGEMILL_TEST_PATIENCE", "6")]) else { return };
    send("-STOP", run.tracer);
    until("the recorder to be ended", || run.recorder.try_wait().unwrap().is_some());
    let (code, said) = run.end();
    assert_eq!(code, None, "{said}");
    assert!(said.contains("no sign of life"), "{said}");
}

/// Nothing in it goes on any more, so nothing in it can let the program go: its keeper ends it.
#[test]
fn a_recorder_that_hangs_is_ended_and_the_program_goes_on() {
    if cfg!(not(debug_assertions)) {
        let _: Option<()> = skip("only a build for tests can be made to hang");
        return;
    }
    let hang = [("PAGEMILL_TEST_HANG", "2"), ("PAGEMILL_TEST_PATIENCE", "6")];
    let Some(mut run) = AtWork::start(&hang) else { return };
    until("the recorder to be ended", || run.recorder.try_wait().unwrap().is_some());
    let (code, said) = run.end();
    assert_eq!(code, None, "{said}");
    assert!(said.contains("no sign of life"), "{said}");
}

/// A child that outlives its parent, which outlives the recorder: nobody was left to answer its calls.
const OUTLIVES: &str = r#"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>
int main(int count, char **words) {
    if (fork()) { while (access(words[1], F_OK)) usleep(1000); _exit(0); }
    alarm(300);
    char *kept = malloc(1 << 20);
    memset(kept, 5, 1 << 20);
    FILE *ready = fopen(words[2], "w");
    fclose(ready);
    while (access(words[3], F_OK)) usleep(1000);
    int wrong = 0;
    for (int i = 0; i < 1 << 20; i++) wrong += kept[i] != 5;
    for (int i = 1; i < 40; i++) {
            char *more = calloc(i, 100000);
            for (int k = 0; k < i * 100000; k += 4096) wrong += more[k];
            free(more);
        }
    wrong += system("true");
    FILE *said = fopen(words[4], "w");
    fprintf(said, "wrong %d\n", wrong);
    return fclose(said);
}
"#;

#[test]
fn a_child_that_outlives_its_parent_and_the_recorder_goes_on() {
    {
        let room = tempfile::tempdir().unwrap();
        let Some(program) = compiled(&room, "outlives", OUTLIVES, &["-O1"]) else { return };
        if !can_trace(&room) {
            return;
        }
        let path = |name: &str| room.path().join(name);
        let (end, ready, go, said) = (path("end"), path("ready"), path("go"), path("said"));
        let words = [text(&program), text(&end), text(&ready), text(&go), text(&said)];
        let mut recorder =
            recorder(&[], &path("rec"), &words).stderr(Stdio::null()).spawn().unwrap();
        until("the child to be ready", || ready.exists());
        recorder.kill().unwrap();
        recorder.wait().unwrap();
        std::fs::write(&end, "").unwrap();
        a_while();
        std::fs::write(&go, "").unwrap();
        until("the child to end", || {
            std::fs::read_to_string(&said).is_ok_and(|said| !said.is_empty())
        });
        assert_eq!(std::fs::read_to_string(&said).unwrap(), "wrong 0\n");
    }
}

/// Touches 24 MB, twice as long as a recording needs to fail; ends with status 7.
const LONG: &str = r#"
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>
int main(int count, char **words) {
    enum { PAGES = 6000 };
    char *block = mmap(0, PAGES * 4096L, 3, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    struct timespec begin, now;
    clock_gettime(CLOCK_MONOTONIC, &begin);
    long round = 0;
    do {
        for (long i = 0; i < PAGES; i++) { if (block[i * 4096] != (char)round) return 1; block[i * 4096]++; }
        if (++round == 3 && words[1]) system(words[1]);
        clock_gettime(CLOCK_MONOTONIC, &now);
    } while (now.tv_sec - begin.tv_sec < 3 || round < 12);
    puts("ok");
    return 7;
}
"#;

/// Limits the size of files of the program's parent, the recorder.
const LIMIT: &str = "prlimit --fsize=4096 --pid $(awk '/^PPid/{print $2}' /proc/$PPID/status)";

#[test]
fn a_recording_that_fails_midway_leaves_the_program_its_status() {
    let room = tempfile::tempdir().unwrap();
    let Some(program) = compiled(&room, "long", LONG, &["-O1"]) else { return };
    if !can_trace(&room) {
        return;
    }
    let program = text(&program);
    let recording = room.path().join("rec");
    // The first part is written after a second.
    let remove = format!("sleep 1.5; rm -r {}", recording.display());
    let mut ways: Vec<(&str, Command)> = vec![
        ("removed", recorder(&[], &recording, &[program, remove.as_str()])),
        ("limit", recorder(&[], &recording, &[program, LIMIT])),
    ];
    let small = room.path().join("small");
    std::fs::create_dir(&small).unwrap();
    let mount = "mount -t tmpfs -o size=120k none \"$1\" && shift && exec \"$@\"";
    let full = small.join("rec");
    if is_root() && has("unshare") {
        let words = ["unshare", "-m", "sh", "-c", mount, "sh", text(&small)];
        ways.push(("full", recorder(&words, &full, &[program])));
    }
    for (way, mut command) in ways {
        let run = ran(&mut command);
        assert_eq!((run.code(), run.out.as_str()), (Some(7), "ok\n"), "{way}: {run:?}");
        let said = ["recording failed", "let go and runs on"];
        assert!(said.iter().any(|what| run.err.contains(what)), "{way}: {run:?}");
    }
}

fn pages(recording: &Path) -> u64 {
    report(recording)["accesses"]["total"]["pages"].as_u64().unwrap()
}

#[test]
fn pid_namespaces_are_recorded_from_outside_and_from_inside() {
    let room = tempfile::tempdir().unwrap();
    let Some(program) = compiled(&room, "long", LONG, &["-O1"]) else { return };
    if !can_trace(&room) || !is_root() || !has("unshare") {
        return;
    }
    let recording = room.path().join("rec");
    let (program, nested) = (text(&program), ["unshare", "-p", "-f"]);
    let inner = |before: &[&'static str]| -> Vec<&str> {
        before.iter().copied().chain([program]).collect()
    };
    let sandbox =
        ["bwrap", "--bind", "/", "/", "--dev", "/dev", "--proc", "/proc", "--unshare-pid"];
    let inside = ["unshare", "-p", "-f", "--mount-proc"];
    let mut ways: Vec<(&[&str], Vec<&str>)> =
        vec![(&[], inner(&nested)), (&inside, inner(&[])), (&inside, inner(&nested))];
    if has("bwrap") {
        ways.push((&[], inner(&sandbox)));
    }
    for (before, words) in ways {
        let run = ran(&mut recorder(before, &recording, &words));
        assert_eq!((run.code(), run.out.as_str()), (Some(7), "ok\n"), "{words:?}: {run:?}");
        let (pages, report) = (pages(&recording), report(&recording));
        assert!(pages > 6000, "{before:?} {words:?}: {pages} pages: {run:?}");
        let accesses = report["accesses"]["total"]["accesses"].as_u64().unwrap();
        assert!(accesses > 6000, "{before:?} {words:?}: {accesses} accesses: {run:?}");
    }
    // With the /proc of another namespace nothing can be looked up.
    let run = ran(&mut recorder(&nested, &recording, &[program]));
    assert_eq!((run.code(), run.out.as_str()), (Some(125), ""), "{run:?}");
    assert!(run.err.contains("another PID namespace"), "{run:?}");
}

/// Others see its command line and its environment, its children's, too, and after it was let go.
#[test]
fn a_traced_program_shows_its_arguments() {
    const SHOWS: &str = r#"
read_all() { tr '\0' ' ' <"/proc/$1/$2"; }
words() { read_all $1 cmdline; read_all $1 environ | grep -o 'SHOWN=[0-9]*'; }
words $$
sleep 60 >/dev/null & child=$!
( sleep 1; words $BASHPID )
kill $child
echo $$ >"$1.pid"
until [ -e "$1" ]; do sleep 0.1; done
words $$
exit 3
"#;
    let room = tempfile::tempdir().unwrap();
    if !can_trace(&room) {
        return;
    }
    let (let_go, recording) = (room.path().join("go"), room.path().join("rec"));
    let mut command = pagemill();
    command.args(["record", "--with", "accesses", "--for", "2s", "-o", text(&recording), "--"]);
    command.args(["bash", "-c", SHOWS, "word", text(&let_go)]);
    let running = command.env("SHOWN", "17").stdout(Stdio::piped()).spawn().unwrap();
    until("the program to be let go", || {
        let number = std::fs::read_to_string(let_go.with_extension("pid")).unwrap_or_default();
        let maps = std::fs::read_to_string(format!("/proc/{}/maps", number.trim()));
        maps.is_ok_and(|maps| !maps.contains("/memfd:pagemill"))
    });
    std::fs::write(&let_go, "").unwrap();
    let done = running.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&done.stdout);
    assert_eq!(done.status.code(), Some(3), "{said}");
    assert_eq!(said.matches("SHOWN=17").count(), 3, "{said}");
    assert_eq!(said.matches("bash -c").count(), 3, "{said}");
}

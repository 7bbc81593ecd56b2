/* Runs a program under a limit:
 *
 *   confine [--deny NAME]... [--limit NAME=VALUE]... [--uid UID] [--no-proc] [--preload FILE] -- PROGRAM [ARGUMENT]...
 *
 * --deny    the system call fails with EPERM (clone3 with ENOSYS, as under container runtimes, because its
 *           flags cannot be seen); `helper` denies threads that the C library did not make
 * --limit   as, data, nproc, nofile, stack
 * --no-proc an own mount namespace in which /proc is not mounted
 * --preload sets LD_PRELOAD for PROGRAM only, so that the limits are in force before its heap starts
 *
 * Status 125 means that the limit could not be set. */
#define _GNU_SOURCE
#include <errno.h>
#include <grp.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

static void need(int ok, const char *what) {
    if (ok) return;
    fprintf(stderr, "confine: %s: %s\n", what, strerror(errno));
    exit(125);
}

static struct sock_filter filter[128];
static unsigned short filled;
static void add(unsigned short code, unsigned char yes, unsigned char no, unsigned value) {
    filter[filled++] = (struct sock_filter){code, yes, no, value};
}
static void deny(const char *name) {
    static const struct {
        const char *name;
        int number;
    } calls[] = {
        {"memfd_create", SYS_memfd_create}, {"userfaultfd", SYS_userfaultfd}, {"madvise", SYS_madvise},
        {"clone", SYS_clone},               {"clone3", SYS_clone3},           {"membarrier", SYS_membarrier},
        {"getrandom", SYS_getrandom},       {"mremap", SYS_mremap},           {"openat", SYS_openat},
        {"seccomp", SYS_seccomp},           {"prctl", SYS_prctl},             {"capset", SYS_capset},
        {"sched_getaffinity", SYS_sched_getaffinity}, {"process_madvise", SYS_process_madvise},
        {"timerfd_create", SYS_timerfd_create}, {"io_uring_setup", SYS_io_uring_setup}, {"rseq", SYS_rseq},
    };
    unsigned refuse = SECCOMP_RET_ERRNO | EPERM;
    if (!strcmp(name, "helper")) {
        /* The C library asks for the number of its threads to be written (CLONE_PARENT_SETTID). */
        enum { SHARES = 0x100, VFORK = 0x4000, SETTID = 0x100000 };
        add(BPF_JMP | BPF_JEQ | BPF_K, 0, 5, SYS_clone);
        add(BPF_LD | BPF_W | BPF_ABS, 0, 0, offsetof(struct seccomp_data, args[0]));
        add(BPF_ALU | BPF_AND | BPF_K, 0, 0, SHARES | VFORK | SETTID);
        add(BPF_JMP | BPF_JEQ | BPF_K, 0, 1, SHARES);
        add(BPF_RET | BPF_K, 0, 0, refuse);
        add(BPF_LD | BPF_W | BPF_ABS, 0, 0, offsetof(struct seccomp_data, nr));
        deny("clone3");
        return;
    }
    for (size_t i = 0; i < sizeof calls / sizeof *calls; i++)
        if (!strcmp(name, calls[i].name)) {
            add(BPF_JMP | BPF_JEQ | BPF_K, 0, 1, (unsigned)calls[i].number);
            add(BPF_RET | BPF_K, 0, 0, calls[i].number == SYS_clone3 ? SECCOMP_RET_ERRNO | ENOSYS : refuse);
            return;
        }
    errno = EINVAL;
    need(0, name);
}
static void limit(const char *text) {
    static const struct {
        const char *name;
        int resource;
    } limits[] = {
        {"as=", RLIMIT_AS},         {"data=", RLIMIT_DATA},   {"nproc=", RLIMIT_NPROC},
        {"nofile=", RLIMIT_NOFILE}, {"stack=", RLIMIT_STACK},
    };
    for (size_t i = 0; i < sizeof limits / sizeof *limits; i++) {
        size_t n = strlen(limits[i].name);
        if (strncmp(text, limits[i].name, n)) continue;
        rlim_t value = strtoull(text + n, NULL, 0);
        struct rlimit both = {value, value};
        need(!setrlimit(limits[i].resource, &both), text);
        return;
    }
    errno = EINVAL;
    need(0, text);
}

int main(int count, char **arguments) {
    const char *limits[16], *preload = NULL;
    int n_limits = 0, uid = -1, i = 1;
    add(BPF_LD | BPF_W | BPF_ABS, 0, 0, offsetof(struct seccomp_data, nr));
    for (; i < count && strcmp(arguments[i], "--"); i++) {
        if (!strcmp(arguments[i], "--deny")) deny(arguments[++i]);
        else if (!strcmp(arguments[i], "--limit")) limits[n_limits++] = arguments[++i];
        else if (!strcmp(arguments[i], "--uid")) uid = atoi(arguments[++i]);
        else if (!strcmp(arguments[i], "--preload")) preload = arguments[++i];
        else if (!strcmp(arguments[i], "--no-proc")) {
            need(!unshare(CLONE_NEWNS), "unshare");
            need(!mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL), "mount --make-rprivate");
            need(!umount2("/proc", MNT_DETACH), "umount /proc");
        } else {
            errno = EINVAL;
            need(0, arguments[i]);
        }
    }
    need(i + 1 < count, "no program");
    if (uid >= 0) {
        need(!setgroups(0, NULL), "setgroups");
        need(!setresgid((gid_t)uid, (gid_t)uid, (gid_t)uid), "setresgid");
        need(!setresuid((uid_t)uid, (uid_t)uid, (uid_t)uid), "setresuid");
    }
    if (preload) need(!setenv("LD_PRELOAD", preload, 1), "setenv");
    for (int k = 0; k < n_limits; k++) limit(limits[k]);
    if (filled > 1) {
        add(BPF_RET | BPF_K, 0, 0, SECCOMP_RET_ALLOW);
        struct sock_fprog program = {filled, filter};
        need(!prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "no_new_privs");
        need(!prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program), "seccomp");
    }
    execv(arguments[i + 1], arguments + i + 1);
    need(0, arguments[i + 1]);
}

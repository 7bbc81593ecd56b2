/* Limits its system calls, then takes small and large blocks, in a forked child too: any call that the library makes in
 * the program's own threads ends the process, and with "all" in any thread.
 *
 * Or limits them and executes itself, which then takes the blocks: no call ends the process that a program makes by
 * itself.
 *
 *   filters one|all|exec */
#define _GNU_SOURCE
#include <errno.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>
#define MIB (1 << 20)
#define WORD(field) BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, field))
#define IF(value, then, otherwise) BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, value, then, otherwise)

static long limit(unsigned flags, int exec) {
    struct sock_filter lines[] = {
        WORD(nr),
        IF(SYS_madvise, 5, 0),
        IF(SYS_futex, 4, 0),
        IF(SYS_clone, 0, 2),
        WORD(args[0]),
        BPF_JUMP(BPF_JMP | BPF_JSET | BPF_K, 0x10000 /* CLONE_THREAD */, 1, 0),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS),
    };
    struct sock_filter rare[] = {
        WORD(nr),
        IF(SYS_userfaultfd, 3, 0),
        IF(SYS_sched_setattr, 2, 0),
        IF(SYS_unshare, 1, 0),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS),
    };
    struct sock_fprog program = {sizeof lines / sizeof *lines, lines};
    if (exec) program = (struct sock_fprog){sizeof rare / sizeof *rare, rare};
    long done = syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, flags, &program);
    /* Who is not root has to give up privileges first. */
    if (done && errno == EACCES && !prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))
        done = syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, flags, &program);
    return done;
}
static int blocks(void) {
    for (int i = 1; i < 60; i++) {
        /* By malloc and by mmap: without room for a huge page, with it, and so large that the first pages are waited
         * for. */
        size_t size = i % 20 ? (size_t)i * 100000 : 80u * MIB;
        char *block = malloc(size), *area = mmap(0, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (!block || area == MAP_FAILED) return 1;
        memset(block, i, 70000), memset(area, i, 70000);
        block = realloc(block, size + MIB);
        if (!block || block[69999] != i) return 1;
        usleep(1000);
        if (i % 3) free(block);
        munmap(area, size);
    }
    return 0;
}
int main(int count, char **arguments) {
    if (count < 2 || blocks()) return 1;
    int all = !strcmp(arguments[1], "all"), exec = !strcmp(arguments[1], "exec");
    unsigned flags = all ? SECCOMP_FILTER_FLAG_TSYNC : 0;
    if (strcmp(arguments[1], "executed") && limit(flags, exec)) return perror("seccomp"), 1;
    if (exec) return execl("/proc/self/exe", arguments[0], "executed", (char *)0), 1;
    if (blocks()) return 1;
    int status = 0;
    pid_t child = fork();
    if (!child) _exit(blocks());
    waitpid(child, &status, 0);
    printf("whole, child %d\n", status);
    return 0;
}

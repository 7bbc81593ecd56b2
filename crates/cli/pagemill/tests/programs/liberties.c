/* What programs do that a library with a thread and descriptors of its own could break: `liberties KIND`.
 *
 * Each kind first fills the heap, so that compaction is at work, does what it is named after, and then
 * works on. */
#include "stress.h"
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <stddef.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>

static struct pool pool;
static void work(void) {
    for (int i = 0; i < 20000; i++) pool_churn(&pool);
    pool_check(&pool, "at work");
}
static void *last_thread(void *argument) {
    (void)argument;
    nap(0.1);
    work();
    puts("ok");
    fflush(stdout);
    return NULL;
}
int main(int count, char **arguments) {
    CHECK(count > 1, "usage: liberties KIND");
    const char *kind = arguments[1];
    if (!strcmp(kind, "again")) {
        puts("ok");
        return 0;
    }
    struct compaction compaction = {.page = stats_page()};
    pool_build(&pool, 6000, 8, 11);
    compaction_wait(&compaction, 1.0);
#define IS(name) (!strcmp(kind, name))
    if (IS("seccomp-all-threads")) {
        /* As browsers and servers do: fails if any thread has a filter of its own. */
        struct sock_filter allow = {BPF_RET | BPF_K, 0, 0, SECCOMP_RET_ALLOW};
        struct sock_fprog program = {1, &allow};
        CHECK(!prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "no_new_privs");
        long result = syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_TSYNC, &program);
        CHECK(result == 0, "seccomp for all threads: %ld, %s", result, result < 0 ? strerror(errno) : "thread");
    } else if (IS("user-namespace")) {
        /* As sandboxes do: refused to a process with more than one thread. */
        int result = unshare(CLONE_NEWUSER);
        CHECK(!result, "unshare(CLONE_NEWUSER): %s", strerror(errno));
    } else if (IS("close-everything")) {
        /* As daemons do. */
        syscall(SYS_close_range, 3, ~0u, 0);
        int fd = open("/dev/null", O_RDWR);
        CHECK(fd == 3, "the first free descriptor is %d", fd);
        for (int i = 4; i < 200; i++) CHECK(dup2(fd, i) == i, "dup2");
        compaction_wait(&compaction, 1.0);
        for (int i = 4; i < 200; i++) CHECK(!close(i), "descriptor %d was closed by another", i);
    } else if (IS("children")) {
        /* The program made none: whatever it can wait for is not its own. */
        errno = 0;
        pid_t pid = waitpid(-1, NULL, __WALL | WNOHANG);
        CHECK(pid < 0 && errno == ECHILD, "waitpid found %d", (int)pid);
    } else if (IS("other-user")) {
        CHECK(!setgid(65534) && !setuid(65534), "setuid: %s", strerror(errno));
        CHECK(getuid() == 65534 && setuid(0) < 0, "root can be had again");
    } else if (IS("exec")) {
        execl("/proc/self/exe", "liberties", "again", NULL);
        fail("exec: %s", strerror(errno));
    } else if (IS("main-thread-ends")) {
        pthread_t thread;
        CHECK(!pthread_create(&thread, NULL, last_thread, NULL), "pthread_create");
        pthread_exit(NULL);
    } else if (IS("lock-all")) {
        CHECK(!mlockall(MCL_CURRENT | MCL_FUTURE), "mlockall: %s", strerror(errno));
        compaction_wait(&compaction, 1.0);
    } else if (IS("protect")) {
        /* As interpreters with a compiler do: code in aligned heap memory, among freed neighbours. */
        enum { COUNT = 512 };
        unsigned char *code[COUNT];
        for (int i = 0; i < COUNT; i++) {
            code[i] = (unsigned char *)aligned_alloc(4096, 4096);
            CHECK(code[i], "aligned_alloc");
        }
        for (int i = 0; i < COUNT; i++) {
            if (i % 7) {
                free(code[i]);
                continue;
            }
#ifdef __aarch64__
            uint32_t words[2] = {0x52800000u | (uint32_t)i << 5, 0xd65f03c0u};
            memcpy(code[i], words, sizeof words);
            __builtin___clear_cache((char *)code[i], (char *)code[i] + 8);
#else
            unsigned char bytes[6] = {0xb8, (unsigned char)i, (unsigned char)(i >> 8), 0, 0, 0xc3};
            memcpy(code[i], bytes, sizeof bytes);
#endif
            CHECK(!mprotect(code[i], 4096, PROT_READ | PROT_EXEC), "mprotect: %s", strerror(errno));
        }
        for (int round = 0; round < 20; round++) {
            compaction_wait(&compaction, 0.2);
            for (int i = 0; i < COUNT; i += 7) {
                int (*function)(void);
                memcpy(&function, &code[i], sizeof function);
                CHECK(function() == i, "the code of function %d changed", i);
            }
            work();
        }
        for (int i = 0; i < COUNT; i += 7) {
            CHECK(!mprotect(code[i], 4096, PROT_READ | PROT_WRITE), "mprotect: %s", strerror(errno));
            free(code[i]);
        }
    } else if (IS("no-file-size") || IS("nobody-reads")) {
        /* stderr is a file that may not grow, or a pipe without a reader; no memfd can be made, which is said there. */
        struct rlimit none = {0, 0};
        int pair[2];
        if (IS("nobody-reads")) CHECK(!pipe(pair) && !close(pair[0]) && dup2(pair[1], 2) == 2, "pipe");
        CHECK(!setrlimit(RLIMIT_FSIZE, &none), "RLIMIT_FSIZE");
        for (int i = 0; i < 20; i++) {
            compaction_wait(&compaction, 1.0);
            pool_churn(&pool);
        }
        work();
        sigset_t waiting;
        CHECK(!sigpending(&waiting) && !sigismember(&waiting, SIGXFSZ) && !sigismember(&waiting, SIGPIPE), "a signal");
        _exit(0); /* Output goes to a file, which may not grow any more. */
    } else fail("no such kind: %s", kind);
    work();
    compaction_wait(&compaction, 1.0);
    compaction_print(&compaction);
    puts("ok");
    return 0;
}

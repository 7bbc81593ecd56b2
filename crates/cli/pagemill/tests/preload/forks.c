// Every way to make a process, while other threads allocate: each child must be able to allocate, free what it
// inherited, and end.
#define _GNU_SOURCE
#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <spawn.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

extern char **environ;
pid_t _Fork(void);

#define KEPT 4000
static char *kept[KEPT];
static atomic_int stop;

static void fill(void) {
    for (int i = 0; i < KEPT; i++) {
        kept[i] = malloc(16 + i % 700);
        memset(kept[i], i & 0xff, 16 + i % 700);
    }
}

static int use(void) {
    for (int i = 0; i < KEPT; i++) {
        for (int j = 0; j < 16 + i % 700; j += 13)
            if ((unsigned char)kept[i][j] != (i & 0xff)) return 3;
        if (i % 2) {
            free(kept[i]);
            kept[i] = malloc(16 + i % 700);
            if (!kept[i]) return 4;
            memset(kept[i], i & 0xff, 16 + i % 700);
        }
    }
    char *large = malloc(9 << 20);
    if (!large) return 5;
    memset(large, 1, 9 << 20);
    free(large);
    return 0;
}

static void *churn(void *seed) {
    unsigned x = (unsigned)(size_t)seed * 2654435761u + 1;
    char *mine[256] = {0};
    while (!stop) {
        x = x * 1664525 + 1013904223;
        int i = x >> 24;
        free(mine[i]);
        mine[i] = malloc(1 + (x >> 8) % 3000);
        mine[i][0] = 1;
    }
    for (int i = 0; i < 256; i++) free(mine[i]);
    return NULL;
}

static int finish(const char *what, pid_t pid) {
    int status = 0;
    if (pid < 0) return printf("%s: %s\n", what, strerror(errno)), 1;
    while (waitpid(pid, &status, __WALL) < 0)
        if (errno != EINTR) return printf("%s: wait: %s\n", what, strerror(errno)), 1;
    if (status) printf("%s: status %#x\n", what, status);
    return status != 0;
}

static pid_t raw_clone(void) { return syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0); }

// A child of threads that run: it may find what another thread was just changing. Only a single-threaded process makes
// these children, as sandboxes and container runtimes do.
static int quiet_children(void) {
    int bad = 0;
    for (int round = 0; round < 20; round++) {
        pid_t pid = raw_clone();
        if (!pid) _exit(use());
        bad += finish("raw clone", pid);
    }
    return bad;
}

int main(int argc, char **argv) {
    int rounds = argc > 1 ? atoi(argv[1]) : 60, bad = 0;
    pthread_t threads[3];
    alarm(120);
    fill();
    bad += quiet_children();
    for (size_t i = 0; i < 3; i++) pthread_create(&threads[i], NULL, churn, (void *)i);
    for (int round = 0; round < rounds; round++) {
        pid_t pid = fork();
        if (!pid) {
            pid_t grandchild = fork();
            if (!grandchild) _exit(use());
            int status = 1;
            waitpid(grandchild, &status, 0);
            _exit(status ? 7 : use());
        }
        bad += finish("fork", pid);
        pid = _Fork();
        if (!pid) _exit(use());
        bad += finish("_Fork", pid);
        pid = vfork();
        if (!pid) {
            execl("/bin/true", "true", NULL);
            _exit(127);
        }
        bad += finish("vfork", pid);
        char *arguments[] = {"true", NULL};
        if (posix_spawn(&pid, "/bin/true", NULL, NULL, arguments, environ)) pid = -1;
        bad += finish("posix_spawn", pid);
    }
    stop = 1;
    for (int i = 0; i < 3; i++) pthread_join(threads[i], NULL);
    bad += use();
    printf("bad children: %d\n", bad);
    return bad != 0;
}

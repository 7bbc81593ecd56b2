/* Every way to make a child, while the heap is compacted and (in the storms) other threads allocate.
 *
 *   forks WAY ROUNDS SEED [alone]
 *
 * WAY: fork vfork _Fork clone clone3 spawn, or storm (several threads use them all). A child checks
 * all contents, writes to half of the objects, allocates, frees and ends; meanwhile the parent writes
 * to the other half; then each finds its own bytes and none of the other's. A child made behind the
 * allocator's back (_Fork, clone) allocates only when FIRE_RAW_CHILDREN_ALLOCATE is set: POSIX
 * does not promise it, this heap does. With `alone` the program has no other thread. */
#include "stress.h"
#include <stdatomic.h>
#include <linux/sched.h>
#include <sched.h>
#include <signal.h>
#include <spawn.h>
#include <sys/syscall.h>

extern char **environ;
static struct pool shared;
static int raw_children_allocate;
static atomic_int stop;

static pid_t make(const char *way) {
    if (!strcmp(way, "fork")) return fork();
    if (!strcmp(way, "_Fork")) return _Fork();
    if (!strcmp(way, "clone")) return (pid_t)syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0);
    if (!strcmp(way, "clone3")) {
        struct clone_args arguments = {.exit_signal = SIGCHLD};
        pid_t pid = (pid_t)syscall(SYS_clone3, &arguments, sizeof arguments);
        if (pid < 0 && errno == ENOSYS) pid = (pid_t)syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0);
        return pid;
    }
    fail("no such way: %s", way);
}

static void work(uint64_t seed, int rounds) {
    struct object objects[64] = {0};
    for (int i = 0; i < rounds; i++) {
        struct object *o = &objects[below(&seed, 64)];
        if (o->at) object_free(o);
        object_new(o, 1 + below(&seed, below(&seed, 50) ? 700 : 200000), next(&seed));
    }
    for (int i = 0; i < 64; i++)
        if (objects[i].at) object_free(&objects[i]);
}

/* Rewrites every second object (from `from` on) and checks the others against the old seeds. */
static void rewrite_half(size_t from, uint64_t salt) {
    for (size_t i = from; i < shared.count; i += 2) {
        struct object *o = &shared.objects[i];
        object_check(o, "before the rewrite");
        fill(o->at, o->size, o->seed ^ salt);
    }
    for (size_t i = 0; i < shared.count; i++) {
        struct object *o = &shared.objects[i];
        verify(o->at, o->size, i % 2 == from ? o->seed ^ salt : o->seed, "after the rewrite");
    }
}
static void restore_half(size_t from) {
    for (size_t i = from; i < shared.count; i += 2) {
        fill(shared.objects[i].at, shared.objects[i].size, shared.objects[i].seed);
    }
}

static void wait_for(pid_t pid, const char *way) {
    int status;
    pid_t got;
    do got = waitpid(pid, &status, 0);
    while (got < 0 && errno == EINTR);
    CHECK(got == pid, "%s: waitpid: %s", way, strerror(errno));
    if (status) fail("the child of %s ended with status %d, signal %d", way, WEXITSTATUS(status), WTERMSIG(status));
}

static void one(const char *way, uint64_t seed, int writes) {
    if (!strcmp(way, "spawn") || !strcmp(way, "vfork")) {
        char *arguments[] = {"/bin/true", NULL};
        pid_t pid;
        if (*way == 's') {
            int error = posix_spawn(&pid, arguments[0], NULL, NULL, arguments, environ);
            CHECK(!error, "posix_spawn: %s", strerror(error));
        } else if (!(pid = vfork())) {
            execve(arguments[0], arguments, environ);
            _exit(127);
        }
        CHECK(pid > 0, "%s: %s", way, strerror(errno));
        wait_for(pid, way);
        return;
    }
    int raw = strcmp(way, "fork") != 0;
    pid_t pid = make(way);
    CHECK(pid >= 0, "%s: %s", way, strerror(errno));
    if (!pid) {
        alarm(60); /* A child that waits for ever is a failure, not a hang of the test. */
        if (writes) {
            pool_check(&shared, "in the child");
            rewrite_half(0, 0x5555);
        }
        if (!raw || raw_children_allocate) {
            work(seed, 2000);
            if (writes) {
                /* Its own churn on the inherited objects, and a child of its own. */
                for (int i = 0; i < 200; i++) {
                    struct object *o = &shared.objects[1 + 2 * below(&seed, shared.count / 2)];
                    object_free(o);
                    object_new(o, 16 + below(&seed, 500), next(&seed));
                }
                pid_t grandchild = make(way);
                if (!grandchild) {
                    alarm(60);
                    work(seed + 1, 500);
                    _exit(0);
                }
                wait_for(grandchild, way);
            }
        }
        if (writes)
            for (size_t i = 0; i < shared.count; i++)
                verify(shared.objects[i].at, shared.objects[i].size, shared.objects[i].seed ^ (i % 2 ? 0 : 0x5555),
                       "at the child's end");
        _exit(0);
    }
    if (writes) rewrite_half(1, 0xaaaa);
    wait_for(pid, way);
    if (writes) {
        for (size_t i = 0; i < shared.count; i++)
            verify(shared.objects[i].at, shared.objects[i].size, shared.objects[i].seed ^ (i % 2 ? 0xaaaa : 0),
                   "in the parent, after the child");
        restore_half(1);
    }
}

static const char *const every[] = {"fork", "vfork", "_Fork", "clone", "clone3", "spawn"};
struct storm {
    pthread_t thread;
    int rounds;
    uint64_t seed;
};
static void *storm(void *argument) {
    struct storm *s = argument;
    for (int i = 0; i < s->rounds; i++) one(every[below(&s->seed, 6)], next(&s->seed), 0);
    return NULL;
}
static void *allocate(void *argument) {
    uint64_t seed = (uint64_t)(uintptr_t)argument;
    while (!atomic_load(&stop)) work(next(&seed), 1000);
    return NULL;
}

int main(int count, char **arguments) {
    CHECK(count > 3, "usage: forks WAY ROUNDS SEED [alone]");
    const char *way = arguments[1];
    int rounds = atoi(arguments[2]), alone = count > 4;
    uint64_t seed = strtoull(arguments[3], NULL, 0);
    raw_children_allocate = getenv("FIRE_RAW_CHILDREN_ALLOCATE") != NULL;
    pool_build(&shared, 6000, 8, seed);
    struct compaction compaction = {.page = stats_page()};
    if (alone) raw_children_allocate = 1;
    else compaction_start(&compaction);
    pthread_t background[2];
    for (uintptr_t i = 0; i < 2 && !alone; i++) {
        CHECK(!pthread_create(&background[i], NULL, allocate, (void *)(seed + i)), "pthread_create");
    }
    rest(0.1);
    if (!strcmp(way, "storm")) {
        struct storm storms[4];
        for (int i = 0; i < 4; i++) {
            storms[i].rounds = rounds;
            storms[i].seed = mix(seed + (uint64_t)i);
            CHECK(!pthread_create(&storms[i].thread, NULL, storm, &storms[i]), "pthread_create");
        }
        for (int i = 0; i < 4; i++) pthread_join(storms[i].thread, NULL);
    } else {
        for (int i = 0; i < rounds; i++) {
            one(way, next(&seed), 1);
            if (alone) compaction_ask(&compaction);
            /* A fresh generation now and then: new spans to merge. */
            if (i % 8 == 7) {
                pool_check(&shared, "between rounds");
                pool_drop(&shared);
                pool_build(&shared, 6000, 8, next(&seed));
                rest(0.02);
            }
        }
    }
    atomic_store(&stop, 1);
    for (int i = 0; i < 2 && !alone; i++) pthread_join(background[i], NULL);
    pool_check(&shared, "at the end");
    if (alone) compaction_print(&compaction);
    else compaction_stop(&compaction);
    puts("ok");
    return 0;
}

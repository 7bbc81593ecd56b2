/* Signals during work that allocates all the time.
 *
 *   signals quiet SECONDS SEED     1 kHz, handlers that do not allocate
 *   signals allocate SECONDS SEED  handlers that allocate when they interrupted the program outside malloc
 *   signals pipe SECONDS SEED      handlers that write to a pipe, on a small alternate stack
 *
 * The handler also fails if it runs on a thread that the program did not make: a helper thread must
 * block every signal. */
#include "stress.h"
#include <stdatomic.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/syscall.h>
#include <sys/time.h>

static volatile sig_atomic_t inside;
static volatile sig_atomic_t handled, allocated;
static enum { QUIET, ALLOCATE, PIPE } mode;
static int self_pipe[2];
static uint64_t handler_random = 1;
static struct object handler_objects[32];
static pid_t own_threads[4];

static void handler(int number) {
    (void)number;
    int kept = errno;
    pid_t tid = (pid_t)syscall(SYS_gettid), known = 0;
    for (int i = 0; i < 4; i++) known |= own_threads[i] == tid;
    if (!known) fail("a signal was handled on thread %d, which the program did not make", (int)tid);
    handled++;
    if (mode == PIPE && write(self_pipe[1], "s", 1) != 1 && errno != EAGAIN)
        fail("write to the pipe: %s", strerror(errno));
    if (mode == ALLOCATE && tid == own_threads[0] && !inside) {
        struct object *o = &handler_objects[below(&handler_random, 32)];
        if (o->at) object_free(o);
        object_new(o, 1 + below(&handler_random, below(&handler_random, 30) ? 800 : 100000), next(&handler_random));
        allocated++;
    }
    errno = kept;
}

static atomic_int stop;
static void *other(void *argument) {
    uint64_t random = (uintptr_t)argument;
    own_threads[(uintptr_t)argument] = (pid_t)syscall(SYS_gettid);
    if (mode == ALLOCATE) {
        sigset_t all;
        sigfillset(&all);
        pthread_sigmask(SIG_BLOCK, &all, NULL);
    }
    struct pool pool;
    pool_build(&pool, 1000, 4, random);
    while (!atomic_load(&stop)) pool_churn(&pool);
    pool_check(&pool, "in the other thread");
    pool_drop(&pool);
    return NULL;
}

int main(int count, char **arguments) {
    CHECK(count > 3, "usage: signals quiet|allocate|pipe SECONDS SEED");
    mode = *arguments[1] == 'q' ? QUIET : *arguments[1] == 'a' ? ALLOCATE : PIPE;
    uint64_t seed = strtoull(arguments[3], NULL, 0);
    own_threads[0] = (pid_t)syscall(SYS_gettid);
    CHECK(!pipe2(self_pipe, O_NONBLOCK), "pipe2");
    struct pool pool;
    pool_build(&pool, 8000, 8, seed);
    struct compaction compaction = {.page = stats_page()};
    pthread_t threads[2];
    for (uintptr_t i = 0; i < 2; i++) {
        CHECK(!pthread_create(&threads[i], NULL, other, (void *)(i + 1)), "pthread_create");
    }
    while (!own_threads[1] || !own_threads[2]) nap(0.001);

    static char alternate[16384];
    stack_t stack = {.ss_sp = alternate, .ss_size = sizeof alternate};
    CHECK(!sigaltstack(&stack, NULL), "sigaltstack");
    struct sigaction action = {.sa_handler = handler, .sa_flags = SA_RESTART | (mode == PIPE ? SA_ONSTACK : 0)};
    CHECK(!sigaction(SIGALRM, &action, NULL), "sigaction");
    struct itimerval every = {{0, 1000}, {0, 1000}};
    CHECK(!setitimer(ITIMER_REAL, &every, NULL), "setitimer");
    double end = now() + atof(arguments[2]);
    unsigned long received = 0;
    struct object *grown = calloc(1, sizeof *grown);
    while (goes_on(end)) {
        for (int i = 0; i < 20; i++) {
            /* Prepared outside, so that `inside` covers the heap's own code only. */
            struct object *o = pool_any(&pool);
            size_t size = 16 + below(&pool.random, below(&pool.random, 100) ? 1000 : 50000);
            object_check(o, "in the main thread");
            inside = 1;
            free(o->at);
            o->at = malloc(size);
            inside = 0;
            CHECK(o->at, "malloc");
            o->size = (uint32_t)size;
            o->seed = next(&pool.random);
            fill(o->at, size, o->seed);
        }
        if (mode == PIPE) {
            char bytes[64];
            ssize_t n = read(self_pipe[0], bytes, sizeof bytes);
            if (n > 0) {
                received += (unsigned long)n;
                if (grown->at) object_free(grown);
                object_new(grown, 1 + below(&pool.random, 3000), next(&pool.random));
            }
        }
        compaction_ask(&compaction);
    }
    struct itimerval never = {{0, 0}, {0, 0}};
    setitimer(ITIMER_REAL, &never, NULL);
    atomic_store(&stop, 1);
    for (int i = 0; i < 2; i++) pthread_join(threads[i], NULL);
    pool_check(&pool, "at the end");
    for (int i = 0; i < 32; i++)
        if (handler_objects[i].at) object_free(&handler_objects[i]);
    compaction_print(&compaction);
    fprintf(stderr, "stress: handled=%d allocated=%d received=%lu\n", (int)handled, (int)allocated, received);
    CHECK(handled > 50, "only %d signals arrived", (int)handled);
    if (mode == ALLOCATE) CHECK(allocated > 10, "only %d handlers allocated", (int)allocated);
    if (mode == PIPE) CHECK(received > 10, "only %lu bytes arrived", received);
    puts("ok");
    return 0;
}

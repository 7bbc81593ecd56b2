// Signal handlers that allocate and fork, wherever they find the program: in fork(), in malloc, in _Fork().
//
//   forks_in_handlers WHAT SECONDS SEED
//
//   malloc-in-fork   the program forks, the handler allocates
//   fork-in-fork     the program forks, the handler forks
//   fork-in-malloc   the program allocates, the handler forks; one child in four goes on where the handler found it
//   child-in-malloc  the program allocates, the handler forks, and the child allocates in the handler; 20 times SECONDS
//   malloc-in-malloc the program allocates, and the handler too; as often
//   threads          as fork-in-malloc, by _Fork(), while other threads allocate
//   by-timer         as fork-in-malloc, by a timer that fires every 3 ms whether the handler has ended or not; the
//                    program goes on until it has made so many thousands of rounds as SECONDS says
//   often-by-timer   the same every 0.5 ms (or, where that is more, four times as long as a fork takes), with objects
//                    that are few and each taken under a lock; a quarter of the rounds; nobody waits for the children
#define _GNU_SOURCE
#include <errno.h>
#include <malloc.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { SLOTS = 512, THREADS = 3 };

static const char *what;
static volatile sig_atomic_t handled, in_child, over, by_timer, often;
static __thread uint64_t state;

static uint64_t next_random(void) {
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return state;
}

static size_t some_size(void) {
    uint64_t bits = next_random();
    if (often) return 20000 + bits % 60000;
    switch (bits % 16) {
    case 0: return 100000 + bits / 16 % 400000;
    case 1: return 5000 + bits / 16 % 30000;
    default: return 1 + bits / 16 % 1500;
    }
}

struct slot {
    unsigned char *object;
    size_t size;
    unsigned char byte;
};

static void check(const struct slot *slot) {
    if (slot->object && (slot->object[0] != slot->byte || slot->object[slot->size - 1] != slot->byte)) {
        static const char words[] = "an object lost its bytes\n";
        (void)!write(2, words, sizeof words - 1);
        _exit(9);
    }
}

// Replaces some of the objects, each checked before.
static void churn(struct slot *slots, int rounds) {
    while (rounds-- > 0) {
        struct slot *slot = &slots[next_random() % (often ? 16 : SLOTS)];
        check(slot);
        free(slot->object);
        slot->object = 0;
        size_t size = some_size();
        unsigned char *object = malloc(size);
        if (!object) _exit(8);
        slot->byte = (unsigned char)next_random();
        memset(object, slot->byte, size);
        slot->size = size;
        slot->object = object;
    }
}

static void reap(pid_t child) {
    int status;
    while (waitpid(child, &status, 0) < 0)
        if (errno != EINTR) _exit(7);
    if (status != 0) {
        char words[64];
        int length = snprintf(words, sizeof words, "a child ended with %#x\n", status);
        (void)!write(2, words, length);
        _exit(6);
    }
}

// The next signal comes when the program has had time to go on.
static void arm(void) {
    struct itimerval timer = {{0, 0}, {0, 1 + (suseconds_t)((uint64_t)handled * 2654435761u % 1500)}};
    setitimer(ITIMER_REAL, &timer, 0);
}

// In the handler: objects of many sizes, resized and asked for their size, and one of the program's before. Each
// keeps its bytes; what is zero is to be so.
static void use_in_handler(struct slot *of_program) {
    static const size_t sizes[] = {1, 24, 100, 700, 3000, 9000, 40000, 70000, 300000, 3000000};
    enum { SIZES = sizeof sizes / sizeof *sizes };
    unsigned char *objects[SIZES];
    for (int i = 0; i < SIZES; i++) {
        objects[i] = i % 3 ? malloc(sizes[i]) : calloc(1, sizes[i]);
        if (!objects[i] || (uintptr_t)objects[i] % 16) _exit(10);
        if (i % 3 == 0 && (objects[i][0] | objects[i][sizes[i] - 1])) _exit(11);
        memset(objects[i], i + 1, sizes[i]);
    }
    for (int i = 0; i < SIZES; i++) {
        unsigned char *larger = realloc(objects[i], sizes[i] * 2);
        if (!larger) _exit(12);
        for (size_t at = 0; at < sizes[i]; at++)
            if (larger[at] != i + 1) _exit(13);
        if (malloc_usable_size(larger) < sizes[i] * 2) _exit(14);
        objects[i] = larger;
    }
    unsigned char *page = aligned_alloc(4096, 5000);
    if (!page || (uintptr_t)page % 4096) _exit(15);
    free(page);
    for (int i = SIZES; i-- > 0;) free(objects[i]);
    if (of_program && of_program->object) {
        check(of_program);
        unsigned char *moved = realloc(of_program->object, of_program->size + 50000);
        if (!moved || moved[of_program->size - 1] != of_program->byte) _exit(16);
        free(moved);
    }
}

// What only handlers use.
static struct slot kept;

static void on_signal(int signal) {
    (void)signal;
    int before = errno;
    handled++;
    if (!strcmp(what, "malloc-in-malloc")) {
        use_in_handler(0);
    } else if (!strcmp(what, "child-in-malloc")) {
        pid_t child = fork();
        if (child == 0) {
            in_child = 1;
            alarm(60);
            sigset_t none;
            sigemptyset(&none);
            struct sigaction usual = {.sa_handler = SIG_DFL};
            sigaction(SIGALRM, &usual, 0);
            sigprocmask(SIG_SETMASK, &none, 0);
            use_in_handler(&kept);
            if (handled % 4) _exit(0);
            // The program goes on where the handler found it.
            kept.object = 0;
            return;
        }
        if (child > 0) reap(child);
    } else if (!strcmp(what, "malloc-in-fork")) {
        for (int i = 0; i < 8; i++) {
            size_t size = 1 + (size_t)handled * 7919 % 300000;
            unsigned char *object = malloc(size);
            if (!object) _exit(5);
            object[0] = object[size - 1] = 1;
            free(object);
        }
    } else {
        pid_t child = strcmp(what, "threads") ? fork() : _Fork();
        if (child == 0) {
            // Neither this handler again nor the timer, which is not inherited.
            in_child = 1;
            if (strcmp(what, "fork-in-malloc") || handled % 4) _exit(0);
            return;
        }
        if (child > 0 && !often) reap(child);
    }
    if (!over && !by_timer) arm();
    errno = before;
}

static void *allocate(void *seed) {
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_BLOCK, &all, 0);
    state = (uintptr_t)seed;
    struct slot *slots = calloc(SLOTS, sizeof *slots);
    while (!over) churn(slots, 100);
    return 0;
}

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec + time.tv_nsec / 1e9;
}

// Microseconds that leave the program most of its time; the shortest of some forks is one that nobody disturbed.
static suseconds_t often_enough(void) {
    double shortest = 1;
    for (int i = 0; i < 20; i++) {
        double begin = now();
        if (fork() == 0) _exit(0);
        double took = now() - begin;
        if (took < shortest) shortest = took;
    }
    return shortest > 125e-6 ? (suseconds_t)(4e6 * shortest) : 500;
}

int main(int argc, char **argv) {
    if (argc < 4) return 2;
    what = argv[1];
    double end = now() + atof(argv[2]);
    state = strtoull(argv[3], 0, 10) * 2654435761u + 88172645463325252u;
    struct sigaction action = {.sa_handler = on_signal, .sa_flags = SA_RESTART};
    sigaction(SIGALRM, &action, 0);
    often = !strcmp(what, "often-by-timer");
    int in_handler = strstr(what, "-in-malloc") && strcmp(what, "fork-in-malloc");
    if (often) signal(SIGCHLD, SIG_IGN);
    struct slot *slots = calloc(SLOTS, sizeof *slots);
    churn(slots, in_handler ? 2000 : 20000);
    kept = (struct slot){.object = malloc(3000), .size = 3000, .byte = 7};
    memset(kept.object, 7, 3000);
    pthread_t threads[THREADS];
    int many = !strcmp(what, "threads") ? THREADS : 0;
    for (int i = 0; i < many; i++)
        if (pthread_create(&threads[i], 0, allocate, (void *)(uintptr_t)(next_random() | 1))) return 3;
    by_timer = often || !strcmp(what, "by-timer");
    suseconds_t period = often ? often_enough() : 3000;
    struct itimerval every = {{0, period}, {0, period}};
    if (by_timer)
        setitimer(ITIMER_REAL, &every, 0);
    else
        arm();
    long rounds = 0, enough = atol(argv[2]) * (often ? 250 : 1000);
    while (by_timer ? rounds < enough : in_handler ? handled < 20 * atoi(argv[2]) : now() < end) {
        if (strstr(what, "in-fork")) {
            pid_t child = fork();
            if (child == 0) {
                // In the child memory is to be had, too.
                free(malloc(some_size()));
                _exit(0);
            }
            if (child > 0) reap(child);
        } else {
            churn(slots, 20);
        }
        if (in_child) {
            churn(slots, 2000);
            for (int i = 0; i < SLOTS; i++) check(&slots[i]);
            _exit(0);
        }
        rounds++;
    }
    over = 1;
    if (by_timer) setitimer(ITIMER_REAL, &(struct itimerval){{0, 0}, {0, 0}}, 0);
    for (int i = 0; i < many; i++) pthread_join(threads[i], 0);
    for (int i = 0; i < SLOTS; i++) check(&slots[i]);
    if (handled == 0) return 4;
    printf("%ld rounds, %d handled\n", rounds, (int)handled);
    return 0;
}

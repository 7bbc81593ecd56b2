/* What the programs share: patterns that prove contents, a fragmented pool of objects, and a thread
 * that keeps asking the heap to compact.
 *
 * The word at index i of an object with seed s is mix(s + i); a file whose word at offset 8*k is
 * mix(k) therefore reads as the object with seed k. Programs end with status 0 and `ok` on stdout,
 * or name what is wrong on stderr and end with status 1.
 *
 * `stats_layout.h` is written by the test: the offset of each field of the statistics page. */
#ifndef FIRE_H
#define FIRE_H
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#include "stats_layout.h"

/* Says what is wrong without allocating, and ends the process (not its parent's copy of stdio). */
static inline __attribute__((noreturn, format(printf, 2, 3))) void
fail_at(const char *condition, const char *format, ...) {
    char line[512];
    int n = snprintf(line, 200, "wrong: %s: ", condition);
    if (n > 199) n = 199;
    va_list list;
    va_start(list, format);
    n += vsnprintf(line + n, sizeof line - (size_t)n - 1, format, list);
    va_end(list);
    if (n > (int)sizeof line - 2) n = sizeof line - 2;
    line[n++] = '\n';
    if (write(2, line, (size_t)n)) {}
    _exit(1);
}
#define fail(...) fail_at(__func__, __VA_ARGS__)
#define CHECK(condition, ...) do { if (!(condition)) fail_at(#condition, __VA_ARGS__); } while (0)

static inline uint64_t mix(uint64_t x) {
    x += 0x9e3779b97f4a7c15ull;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
    return x ^ (x >> 31);
}
static inline uint64_t next(uint64_t *state) { return mix((*state)++); }
static inline uint64_t below(uint64_t *state, uint64_t bound) { return next(state) % bound; }

static inline double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}
static inline void nap(double seconds) {
    struct timespec t = {(time_t)seconds, (long)((seconds - (double)(time_t)seconds) * 1e9)};
    nanosleep(&t, NULL);
}

/* Fills with the pattern of `seed`; a tail shorter than a word is the word's low bytes. */
static inline void fill(void *object, size_t size, uint64_t seed) {
    unsigned char *p = (unsigned char *)object;
    size_t words = size / 8;
    for (size_t i = 0; i < words; i++) {
        uint64_t w = mix(seed + i);
        memcpy(p + 8 * i, &w, 8);
    }
    uint64_t w = mix(seed + words);
    memcpy(p + 8 * words, &w, size % 8);
}
/* Index of the first wrong byte, or -1. */
static inline long wrong(const void *object, size_t size, uint64_t seed) {
    const unsigned char *p = (const unsigned char *)object;
    for (size_t i = 0; i <= size / 8; i++) {
        uint64_t w = mix(seed + i);
        size_t n = i < size / 8 ? 8 : size % 8;
        if (memcmp(p + 8 * i, &w, n)) {
            for (size_t k = 0; k < n; k++)
                if (p[8 * i + k] != ((unsigned char *)&w)[k]) return (long)(8 * i + k);
        }
    }
    return -1;
}
static inline void verify(const void *object, size_t size, uint64_t seed, const char *what) {
    long at = wrong(object, size, seed);
    if (at >= 0)
        fail("wrong byte: %s: object %p of %zu bytes, byte %ld is %02x, pid %d", what, object, size, at,
             ((const unsigned char *)object)[at], (int)getpid());
}

/* A pool of objects of many sizes with known contents; most of it is freed again, so that the
 * survivors lie scattered over nearly empty spans. */
struct object {
    unsigned char *at;
    uint32_t size;
    uint64_t seed;
};
struct pool {
    struct object *objects;
    size_t count;
    uint64_t random;
};
static inline void object_new(struct object *o, size_t size, uint64_t seed) {
    o->at = (unsigned char *)malloc(size);
    CHECK(o->at, "malloc(%zu)", size);
    o->size = (uint32_t)size;
    o->seed = seed;
    fill(o->at, size, seed);
}
static inline void object_check(const struct object *o, const char *what) { verify(o->at, o->size, o->seed, what); }
static inline void object_free(struct object *o) {
    object_check(o, "before free");
    free(o->at);
    o->at = NULL;
}
/* `survivors` objects with sizes in the classes 16..2048, one in `keep` of those allocated. */
static inline void pool_build(struct pool *pool, size_t survivors, unsigned keep, uint64_t seed) {
    static const unsigned sizes[] = {16, 24, 48, 64, 80, 96, 128, 192, 256, 256, 320, 512, 512, 640, 1024, 2048};
    size_t all = survivors * keep;
    struct object *objects = (struct object *)malloc(all * sizeof *objects);
    CHECK(objects, "malloc of the table");
    pool->random = seed;
    for (size_t i = 0; i < all; i++) {
        uint64_t r = next(&pool->random);
        size_t size = sizes[r % 16] - (r >> 8) % 8;
        object_new(&objects[i], size, next(&pool->random));
    }
    pool->objects = (struct object *)malloc(survivors * sizeof *objects);
    CHECK(pool->objects, "malloc of the table");
    pool->count = survivors;
    for (size_t i = 0; i < survivors; i++) {
        size_t chosen = below(&pool->random, keep);
        for (size_t k = 0; k < keep; k++) {
            if (k == chosen) pool->objects[i] = objects[i * keep + k];
            else object_free(&objects[i * keep + k]);
        }
    }
    free(objects);
}
static inline void pool_check(const struct pool *pool, const char *what) {
    for (size_t i = 0; i < pool->count; i++) object_check(&pool->objects[i], what);
}
static inline void pool_drop(struct pool *pool) {
    for (size_t i = 0; i < pool->count; i++) object_free(&pool->objects[i]);
    free(pool->objects);
    pool->objects = NULL;
    pool->count = 0;
}
static inline struct object *pool_any(struct pool *pool) { return &pool->objects[below(&pool->random, pool->count)]; }
/* Replaces one object by one of another size and seed. */
static inline void pool_churn(struct pool *pool) {
    struct object *o = pool_any(pool);
    size_t size = 16 + below(&pool->random, 1024);
    object_free(o);
    object_new(o, size, next(&pool->random));
}

/* The statistics page of the heap in force, or NULL under any other allocator. */
static inline unsigned char *stats_page(void) { return (unsigned char *)dlsym(RTLD_DEFAULT, "pagemill_stats"); }
static inline uint64_t stats_at(const unsigned char *page, size_t offset) {
    return __atomic_load_n((const uint64_t *)(const void *)(page + offset), __ATOMIC_RELAXED);
}

/* Asks for a compaction pass again and again until told to stop, and counts the groups that
 * appear. Two readings can miss a group that came and went, so the count is a lower bound. */
static int anything_merged;
struct compaction {
    pthread_t thread;
    int stop;
    unsigned char *page;
    uint64_t merged, before;
};
/* At most one request is open at a time. */
static inline void request_pass(struct compaction *c) {
    uint64_t *request = (uint64_t *)(void *)(c->page + STATS_request);
    uint64_t last = __atomic_load_n(request, __ATOMIC_RELAXED);
    if (stats_at(c->page, STATS_request_done) == last) __atomic_store_n(request, last + 1, __ATOMIC_RELAXED);
}
static inline void compaction_look(struct compaction *c) {
    uint64_t groups = stats_at(c->page, STATS_groups);
    if (groups > c->before) c->merged += groups - c->before;
    c->before = groups;
    if (c->merged) __atomic_store_n(&anything_merged, 1, __ATOMIC_RELAXED);
}
static inline void *compaction_loop(void *argument) {
    struct compaction *c = (struct compaction *)argument;
    while (!__atomic_load_n(&c->stop, __ATOMIC_RELAXED)) {
        request_pass(c);
        nap(0.0005);
        compaction_look(c);
    }
    return NULL;
}
static inline void compaction_start(struct compaction *c) {
    memset(c, 0, sizeof *c);
    c->page = stats_page();
    if (c->page) CHECK(!pthread_create(&c->thread, NULL, compaction_loop, c), "pthread_create");
}
/* The same without a thread, for programs that must have only one. */
static inline void compaction_ask(struct compaction *c) {
    if (!c->page) return;
    request_pass(c);
    compaction_look(c);
}
/* Asks and waits until the request is served, at most so long; without a helper thread it never is. */
static inline void compaction_wait(struct compaction *c, double seconds) {
    if (!c->page) return;
    double until = now() + seconds;
    compaction_ask(c);
    uint64_t wanted = stats_at(c->page, STATS_request);
    while (stats_at(c->page, STATS_request_done) < wanted && now() < until) nap(0.001);
    compaction_ask(c);
}
/* Whether this program proves nothing until something was merged, which takes its time on a busy machine: the test says
 * so by FIRE_MERGES. */
static inline int merges_awaited(void) {
    return getenv("FIRE_MERGES") && !__atomic_load_n(&anything_merged, __ATOMIC_RELAXED);
}
/* Whether a timed loop goes on: until its end, and where merges are awaited until the first, a minute at most. */
static inline int goes_on(double end) { return now() < end || (merges_awaited() && now() < end + 60); }
/* Leaves objects alone: for so long, and where merges are awaited for two more passes, two seconds at most. */
static inline void rest(double seconds) {
    nap(seconds);
    unsigned char *page = merges_awaited() ? stats_page() : NULL;
    if (!page) return;
    double until = now() + 2;
    uint64_t passes = stats_at(page, STATS_passes);
    while (merges_awaited() && stats_at(page, STATS_passes) < passes + 2 && now() < until) nap(0.002);
}
/* One line on stderr that the test reads: `stress: merged=12 ...`. */
static inline void compaction_print(const struct compaction *c) {
    if (!c->page) {
        fprintf(stderr, "stress: another allocator\n");
        return;
    }
    fprintf(stderr,
            "stress: merged=%llu requests=%llu passes=%llu backend=%llu barrier=%llu degraded=%llu aborted=%llu "
            "unmerged=%llu saved=%llu vmas=%llu vma_budget=%llu longest_pause_ns=%llu\n",
            (unsigned long long)c->merged, (unsigned long long)stats_at(c->page, STATS_request_done),
            (unsigned long long)stats_at(c->page, STATS_passes), (unsigned long long)stats_at(c->page, STATS_backend),
            (unsigned long long)stats_at(c->page, STATS_barrier), (unsigned long long)stats_at(c->page, STATS_degraded),
            (unsigned long long)stats_at(c->page, STATS_aborted_groups),
            (unsigned long long)stats_at(c->page, STATS_unmerged_pages),
            (unsigned long long)stats_at(c->page, STATS_saved_bytes),
            (unsigned long long)stats_at(c->page, STATS_vmas), (unsigned long long)stats_at(c->page, STATS_vma_budget),
            (unsigned long long)stats_at(c->page, STATS_longest_pause_ns));
}
static inline void compaction_stop(struct compaction *c) {
    if (c->page) {
        __atomic_store_n(&c->stop, 1, __ATOMIC_RELAXED);
        pthread_join(c->thread, NULL);
    }
    compaction_print(c);
}
#endif

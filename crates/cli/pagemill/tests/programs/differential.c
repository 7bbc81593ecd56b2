/* Random calls of the whole C interface from several threads, checked against what the standard
 * and the model (address, size, contents of everything that is live) say.
 *
 *   differential SECONDS SEED THREADS
 *
 * Each thread has its own table; some slots are shared, so that objects are freed, resized and read by
 * other threads than the one that allocated them. The seed is printed first. */
#include "stress.h"
#include <stdatomic.h>
#include <malloc.h>

#define OWN 6000
#define SHARED 512
struct slot {
    struct object object;
    size_t usable;
};
static struct shared_slot {
    pthread_mutex_t lock;
    struct slot slot;
} shared[SHARED];
static double end;
static atomic_ulong calls;

static size_t random_size(uint64_t *random) {
    switch (below(random, 16)) {
    case 0: return below(random, 17);
    case 1: return 4096 - 8 + below(random, 16);
    case 2: return 1 + below(random, 40000);
    case 3: return below(random, 24) ? 1 + below(random, 3000) : 1 + below(random, 3000000);
    default: return 1 + below(random, 1 + below(random, 1200));
    }
}
static void check_slot(struct slot *s, const char *what) {
    if (!s->object.at) return;
    object_check(&s->object, what);
    CHECK(malloc_usable_size(s->object.at) == s->usable, "usable size of %p (%u asked) was %zu, is %zu",
          (void *)s->object.at, s->object.size, s->usable, malloc_usable_size(s->object.at));
}
static void adopt(struct slot *s, void *at, size_t size, size_t align, uint64_t seed, const char *what) {
    CHECK(at, "%s(%zu) gave NULL: %s", what, size, strerror(errno));
    /* jemalloc leaves an aligned object of no bytes unaligned, and nobody can tell. */
    CHECK((uintptr_t)at % align == 0 || !size, "%s(%zu) gave %p, not aligned to %zu", what, size, at, align);
    s->usable = malloc_usable_size(at);
    CHECK(s->usable >= size, "%s(%zu) has only %zu usable bytes", what, size, s->usable);
    s->object = (struct object){at, (uint32_t)size, seed};
    fill(at, size, seed);
}
static void release(struct slot *s) {
    if (!s->object.at) return;
    check_slot(s, "before free");
    errno = 7777;
    free(s->object.at);
    CHECK(errno == 7777, "free changed errno to %d", errno);
    s->object.at = NULL;
}
static void allocate(struct slot *s, uint64_t *random) {
    size_t size = random_size(random), natural = size >= 16 ? 16 : 8;
    uint64_t seed = next(random);
    void *at = NULL;
    switch (below(random, 8)) {
    case 0: {
        size_t each = 1 + below(random, 64), n = size / each;
        at = calloc(n, each);
        CHECK(at, "calloc");
        for (size_t i = 0; i < n * each; i++)
            CHECK(((unsigned char *)at)[i] == 0, "calloc(%zu, %zu) at %p: byte %zu is %02x", n, each, at, i,
                  ((unsigned char *)at)[i]);
        adopt(s, at, n * each, n * each >= 16 ? 16 : 8, seed, "calloc");
        return;
    }
    case 1: {
        size_t align = (size_t)1 << (4 + below(random, 10));
        at = aligned_alloc(align, size);
        adopt(s, at, size, align, seed, "aligned_alloc");
        return;
    }
    case 2: {
        size_t align = (size_t)8 << below(random, below(random, 30) ? 8 : 14);
        int error = posix_memalign(&at, align, size);
        CHECK(!error, "posix_memalign(%zu, %zu): %s", align, size, strerror(error));
        adopt(s, at, size, align, seed, "posix_memalign");
        return;
    }
    case 3: {
        size_t align = (size_t)1 << (3 + below(random, 8));
        at = memalign(align, size);
        adopt(s, at, size, align, seed, "memalign");
        return;
    }
    default: at = malloc(size); adopt(s, at, size, natural, seed, "malloc");
    }
}
static void resize(struct slot *s, uint64_t *random) {
    if (!s->object.at) {
        allocate(s, random);
        return;
    }
    check_slot(s, "before realloc");
    size_t size = random_size(random), kept = size < s->object.size ? size : s->object.size;
    if (!size) size = 1;
    void *at = below(random, 4) ? realloc(s->object.at, size) : reallocarray(s->object.at, 1, size);
    CHECK(at, "realloc(%zu)", size);
    /* A tail shorter than a word compares by its low bytes, so a prefix needs care only at its last word. */
    verify(at, kept & ~(size_t)7, s->object.seed, "after realloc");
    adopt(s, at, size, 8, next(random), "realloc");
}
static void limits(void) {
    void *kept = malloc(100);
    volatile size_t huge = (size_t)-1 - 4096, half = ((size_t)-1 >> 1) + 1;
    fill(kept, 100, 5);
    errno = 0;
    CHECK(!malloc(huge) && errno == ENOMEM, "malloc(huge): errno %d", errno);
    errno = 0;
    CHECK(!malloc(half) && errno == ENOMEM, "malloc(PTRDIFF_MAX + 1): errno %d", errno);
    errno = 0;
    CHECK(!calloc(half, 2) && errno == ENOMEM, "calloc that overflows: errno %d", errno);
    errno = 0;
    CHECK(!reallocarray(kept, half, 2) && errno == ENOMEM, "reallocarray that overflows: errno %d", errno);
    CHECK(!realloc(kept, huge), "realloc(huge)");
    verify(kept, 100, 5, "after a failed realloc");
    void *at = (void *)1;
    CHECK(posix_memalign(&at, 24, 10) == EINVAL, "posix_memalign(24)");
    CHECK(posix_memalign(&at, 64, huge) == ENOMEM, "posix_memalign(huge)");
    void *a = malloc(0), *b = malloc(0);
    CHECK(a && b && a != b, "malloc(0) must give unique pointers");
    free(a);
    free(b);
    free(NULL);
    CHECK(malloc_usable_size(NULL) == 0, "malloc_usable_size(NULL)");
    free(kept);
}

static void *run(void *argument) {
    uint64_t random = (uint64_t)(uintptr_t)argument;
    struct slot *own = calloc(OWN, sizeof *own);
    unsigned long n = 0;
    unsigned round = 2;
    while (goes_on(end)) {
        /* Phases of growth and of death: fragmentation is what compaction lives on. */
        unsigned death = round++ % 4;
        for (int i = 0; i < 8000; i++, n++) {
            struct slot *s = &own[below(&random, OWN)];
            struct shared_slot *with = NULL;
            if (below(&random, 8) == 0) {
                with = &shared[below(&random, SHARED)];
                pthread_mutex_lock(&with->lock);
                s = &with->slot;
            }
            unsigned choice = (unsigned)below(&random, 8);
            if (choice < 3 + death) release(s);
            else if (choice == 7) resize(s, &random);
            else {
                release(s);
                allocate(s, &random);
            }
            if (with) pthread_mutex_unlock(&with->lock);
            check_slot(&own[below(&random, OWN)], "picked at random");
        }
        if (death == 3) {
            /* Few survivors, scattered: what merging is for. They rest for a moment and must be unharmed. */
            size_t spared = below(&random, 8);
            for (size_t i = 0; i < OWN; i++)
                if (i % 8 != spared) release(&own[i]);
            rest(0.1);
            for (size_t i = spared; i < OWN; i += 8) check_slot(&own[i], "after a rest");
        }
        if (below(&random, 8) == 0) malloc_trim(0);
        if (below(&random, 4) == 0) limits();
        if (below(&random, 4) == 0) nap(0.003);
    }
    for (int i = 0; i < OWN; i++) release(&own[i]);
    free(own);
    atomic_fetch_add(&calls, n);
    return NULL;
}

int main(int count, char **arguments) {
    CHECK(count > 3, "usage: differential SECONDS SEED THREADS");
    uint64_t seed = strtoull(arguments[2], NULL, 0);
    fprintf(stderr, "stress: seed=%llu\n", (unsigned long long)seed);
    end = now() + atof(arguments[1]);
    int n = atoi(arguments[3]);
    for (int i = 0; i < SHARED; i++) pthread_mutex_init(&shared[i].lock, NULL);
    struct compaction compaction;
    compaction_start(&compaction);
    pthread_t *threads = calloc((size_t)n, sizeof *threads);
    for (int i = 0; i < n; i++) {
        void *own = (void *)(uintptr_t)mix(seed + (uint64_t)i);
        CHECK(!pthread_create(&threads[i], NULL, run, own), "pthread_create");
    }
    for (int i = 0; i < n; i++) pthread_join(threads[i], NULL);
    for (int i = 0; i < SHARED; i++) release(&shared[i].slot);
    free(threads);
    compaction_stop(&compaction);
    fprintf(stderr, "stress: calls=%lu\n", (unsigned long)calls);
    CHECK(calls > 1000, "hardly any calls");
    puts("ok");
    return 0;
}

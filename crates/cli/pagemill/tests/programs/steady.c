/* The same work whatever is denied: its output is a digest of what it computed in its heap.
 *
 *   steady ROUNDS SEED [THREADS] [nofile3] [exhaust]
 *
 * `nofile3` lowers RLIMIT_NOFILE to 3 at the start of main, where the loader needs no more
 * descriptors. `exhaust` (with one thread) also allocates until there is nothing left, gives it all back and goes
 * on. */
#include "stress.h"
#include <sys/resource.h>

struct part {
    pthread_t thread;
    uint64_t seed, digest;
    int rounds, exhaust;
    struct compaction compaction;
};
static void until_nothing_is_left(void) {
    static const size_t sizes[] = {48, 700, 20000, 3000000};
    for (int s = 0; s < 4; s++) {
        void **list = NULL, **p;
        size_t n = 0;
        errno = 0;
        while ((p = (void **)malloc(sizes[s]))) {
            *p = list;
            list = p;
            n++;
            CHECK(n < 100000000, "there is no end");
        }
        CHECK(errno == ENOMEM, "malloc failed with errno %d", errno);
        while (list) {
            p = (void **)*list;
            free(list);
            list = p;
        }
        CHECK(n > 2 || !stats_page(), "only %zu objects of %zu bytes", n, sizes[s]);
    }
}
static void *run(void *argument) {
    struct part *part = (struct part *)argument;
    for (int round = 0; round < part->rounds; round++) {
        struct pool pool;
        pool_build(&pool, 3000, 8, mix(part->seed + (uint64_t)round));
        if (part->exhaust && round == 0) until_nothing_is_left();
        if (round == 0) compaction_wait(&part->compaction, 0.3);
        for (int i = 0; i < 3000; i++) pool_churn(&pool);
        for (size_t i = 0; i < pool.count; i++) {
            struct object *o = &pool.objects[i];
            object_check(o, "at the round's end");
            for (size_t k = 0; k < o->size; k++) part->digest = part->digest * 31 + o->at[k];
        }
        struct object large;
        object_new(&large, 3000000, part->digest);
        large.at = (unsigned char *)realloc(large.at, 5000000);
        CHECK(large.at, "realloc");
        object_free(&large);
        pool_drop(&pool);
    }
    return NULL;
}
int main(int count, char **arguments) {
    CHECK(count > 2, "usage: steady ROUNDS SEED [THREADS] [nofile3] [exhaust]");
    int rounds = atoi(arguments[1]), threads = count > 3 ? atoi(arguments[3]) : 1, exhaust = 0;
    uint64_t seed = strtoull(arguments[2], NULL, 0), digest = 0;
    for (int i = 4; i < count; i++) {
        if (!strcmp(arguments[i], "exhaust")) exhaust = 1;
        else if (!strcmp(arguments[i], "nofile3")) {
            struct rlimit three = {3, 3};
            CHECK(!setrlimit(RLIMIT_NOFILE, &three), "setrlimit");
        }
    }
    struct part parts[8] = {0};
    for (int i = 0; i < threads; i++) {
        parts[i] = (struct part){
            .seed = mix(seed + (uint64_t)i),
            .rounds = rounds,
            .exhaust = exhaust && i == 0,
            .compaction = {.page = stats_page()},
        };
    }
    for (int i = 1; i < threads; i++) {
        int error = pthread_create(&parts[i].thread, NULL, run, &parts[i]);
        CHECK(!error, "pthread_create: %s", strerror(error));
    }
    run(&parts[0]);
    for (int i = 1; i < threads; i++) pthread_join(parts[i].thread, NULL);
    for (int i = 0; i < threads; i++) digest = mix(digest ^ parts[i].digest);
    compaction_print(&parts[0].compaction);
    printf("digest %016llx\n", (unsigned long long)digest);
    return 0;
}

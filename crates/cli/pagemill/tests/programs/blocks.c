/* Large and small blocks by every function of the C library that gives them, from several threads: each is where it may
 * be, holds what was written, keeps it when it is resized, and errno is as the library leaves it. With an argument
 * instead: blocks of 1 MiB until one of each function is advised for larger pages.
 *
 *   blocks [advised] */
#define _GNU_SOURCE
#include <errno.h>
#include <malloc.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#define CHECK(what) ((what) ? (void)0 : (fprintf(stderr, "line %d: %s\n", __LINE__, #what), exit(1)))
enum { KINDS = 7, LIVE = 24, ROUNDS = 1500, MIB = 1 << 20 };
static const char *const name[KINDS] = {
    "malloc", "calloc", "realloc", "memalign", "aligned_alloc", "posix_memalign", "grown",
};

static unsigned char *get(int kind, size_t size, size_t align) {
    void *block = 0;
    switch (kind) {
    case 0: return malloc(size);
    case 1: return calloc(size / 16 + 1, 16);
    case 2: return realloc(0, size);
    case 3: return memalign(align, size);
    case 4: return aligned_alloc(align, size);
    case 5: return posix_memalign(&block, align, size) ? 0 : block;
    default: return realloc(malloc(size / 2), size);
    }
}
/* Bytes at both ends and one a page, so that a block that overlaps another shows. */
static void fill(unsigned char *at, size_t size, unsigned char mark) {
    for (size_t i = 0; i < size; i += 4096) at[i] = mark;
    at[size - 1] = mark;
}
static void holds(const unsigned char *at, size_t size, size_t of, unsigned char mark) {
    for (size_t i = 0; i < size; i += 4096) CHECK(at[i] == mark);
    if (size == of) CHECK(at[size - 1] == mark);
}
static void *random_blocks(void *argument) {
    struct { unsigned char *at; size_t size; unsigned char mark; } live[LIVE] = {{0}};
    uint64_t random = 88172645463325252u + (uintptr_t)argument * 977;
    for (int round = 0; round < ROUNDS; round++) {
        random ^= random << 13, random ^= random >> 7, random ^= random << 17;
        int number = random % LIVE, kind = random / LIVE % KINDS;
        size_t size = 1 + (random >> 16) % (random >> 60 ? 300000 : 6 << 20), align = (size_t)16 << (random >> 40) % 12;
        unsigned char mark = round;
        if (live[number].at) holds(live[number].at, live[number].size, live[number].size, live[number].mark);
        if (live[number].at && random >> 63) {
            unsigned char *moved = realloc(live[number].at, size);
            CHECK(moved);
            holds(moved, size < live[number].size ? size : live[number].size, live[number].size, live[number].mark);
            live[number].at = moved;
        } else {
            free(live[number].at);
            live[number].at = get(kind, size, align);
            CHECK(live[number].at);
            if (kind >= 3 && kind <= 5) CHECK((uintptr_t)live[number].at % align == 0);
            if (kind == 1) holds(live[number].at, size, size, 0);
        }
        CHECK(malloc_usable_size(live[number].at) >= size);
        live[number].size = size, live[number].mark = mark;
        fill(live[number].at, size, mark);
    }
    for (int number = 0; number < LIVE; number++) free(live[number].at);
    return 0;
}
static int advised(unsigned char *block) {
    char line[512];
    unsigned long start, end;
    int inside = 0, found = 0;
    FILE *smaps = fopen("/proc/self/smaps", "r");
    while (fgets(line, sizeof line, smaps)) {
        if (sscanf(line, "%lx-%lx ", &start, &end) == 2) inside = start <= (uintptr_t)block && (uintptr_t)block < end;
        if (inside && !strncmp(line, "VmFlags:", 8)) found = strstr(line, " hg") != 0;
    }
    fclose(smaps);
    return found;
}
static void each_is_advised(void) {
    /* Each has a mapping of its own, whatever was freed before. */
    mallopt(M_MMAP_THRESHOLD, 128 << 10);
    for (int kind = 0; kind < KINDS; kind++) {
        int found = 0;
        for (int tries = 0; tries < 100 && !found; tries++) {
            unsigned char *block = get(kind, MIB, 64);
            found = advised(block);
            free(block);
            if (!found) usleep(10000);
        }
        printf("%s: %s\n", name[kind], found ? "advised" : "not advised");
    }
}
int main(int count, char **arguments) {
    (void)arguments;
    if (count > 1) return each_is_advised(), 0;
    volatile size_t much = SIZE_MAX / 2 + 1;
    errno = 0;
    printf("too much: %d", malloc(much) == 0 && errno == ENOMEM), errno = 0;
    printf(" %d", calloc(much, 4) == 0 && errno == ENOMEM), errno = 0;
    printf(" %d", realloc(0, much) == 0 && errno == ENOMEM), errno = 0;
    printf(" %d", memalign(64, much) == 0 && errno == ENOMEM), errno = 0;
    printf(" %d", aligned_alloc(64, much) == 0 && errno == ENOMEM);
    void *block = &block;
    printf(" %d", posix_memalign(&block, 64, much) == ENOMEM && block == &block);
    printf(" %d\n", posix_memalign(&block, 24, MIB) == EINVAL && block == &block);
    errno = 4711;
    for (int kind = 0; kind < KINDS; kind++) free(get(kind, 3 * MIB, 8192));
    printf("errno %d\n", errno);
    pthread_t threads[3];
    for (uintptr_t i = 0; i < 3; i++) CHECK(!pthread_create(&threads[i], 0, random_blocks, (void *)i));
    for (int i = 0; i < 3; i++) pthread_join(threads[i], 0);
    printf("whole\n");
    return 0;
}

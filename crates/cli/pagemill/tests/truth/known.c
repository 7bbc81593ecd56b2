#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
static double now(void) {
    struct timespec at;
    clock_gettime(CLOCK_MONOTONIC, &at);
    return at.tv_sec + at.tv_nsec / 1e9;
}
static unsigned long seed = 1;
static unsigned long next(void) { return seed = seed * 6364136223846793005UL + 1442695040888963407UL; }
/* Of 48 MiB of small objects one in sixteen is kept, scattered, and read for a while. */
static unsigned long holes(void) {
    enum { OBJECTS = 196608, SIZE = 240, ROUNDS = 5000 };
    static char *objects[OBJECTS];
    unsigned long sum = 0;
    for (int i = 0; i < OBJECTS; i++) memset(objects[i] = malloc(SIZE), i, SIZE);
    for (int i = 0; i < OBJECTS; i++)
        if (i % 16) { free(objects[i]); objects[i] = 0; }
    for (int round = 0; round < ROUNDS; round++)
        for (int i = 0; i < OBJECTS; i += 16) sum += objects[i][round % SIZE];
    return sum;
}
/* 64 MiB are written once, and then 64 KiB are used. */
static unsigned long cold(void) {
    unsigned long *archive = malloc(64 << 20), *hot = malloc(64 << 10), sum = 0;
    memset(archive, 1, 64 << 20);
    memset(hot, 1, 64 << 10);
    for (int round = 0; round < 80000; round++)
        for (int i = 0; i < 8192; i++) sum += hot[i] ^ round;
    return sum + archive[77];
}
/* The same in small objects, which lie in the heap that is read to see what is free there. */
static unsigned long kept(void) {
    unsigned long *hot = malloc(64 << 10), sum = 0;
    for (int i = 0; i < 65536; i++) memset(malloc(1000), 1, 1000);
    memset(hot, 1, 64 << 10);
    for (int round = 0; round < 80000; round++)
        for (int i = 0; i < 8192; i++) sum += hot[i] ^ round;
    return sum;
}
/* Of 65536 pages 16385 are read in random order, a word of each, each after the one before: each read walks the page
   table. */
static unsigned long walks(void) {
    size_t pages = 65536, words = 512;
    unsigned long *table = malloc(pages * words * 8), sum = 0;
    for (size_t i = 0; i < pages; i++) table[i * words + i * 8 % words] = i;
    for (int i = 0; i < 4000000; i++) {
        size_t page = (next() + sum) % pages;
        sum += table[page * words + page * 8 % words];
    }
    return sum;
}
/* All of 1 MiB is worked on. */
static unsigned long nothing(void) {
    unsigned long *all = malloc(1 << 20), sum = 0;
    memset(all, 1, 1 << 20);
    for (int round = 0; round < 4000; round++)
        for (int i = 0; i < 131072; i++) all[i] = sum += all[i] ^ round;
    return sum;
}
/* Asks for huge pages and touches a base page of each. */
static unsigned long hurt(void) {
    size_t huge = 2 << 20, count = 48;
    char *a = aligned_alloc(huge, huge * count);
    unsigned long sum = 0;
    madvise(a, huge * count, MADV_HUGEPAGE);
    for (int round = 0; round < 200; round++)
        for (size_t i = 0; i < count; i++) {
            for (int n = 0; n < 20000; n++) sum = sum * 1664525 + 1013904223;
            a[i * huge] += sum >> 24;
        }
    return sum;
}
int main(int count, char **words) {
    double begun = now();
    unsigned long sum = words[1][0] == 'h' ? (words[1][1] == 'o' ? holes() : hurt())
        : words[1][0] == 'c' ? cold() : words[1][0] == 'k' ? kept() : words[1][0] == 'w' ? walks() : nothing();
    fprintf(stderr, "%.3f s\n", now() - begun);
    printf("%lu\n", sum);
    return 0;
}

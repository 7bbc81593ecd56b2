// Threads that grow, shrink, move, protect, discard and copy memory at random, with every page's content known:
// what a library provides beside them must never show. A second argument makes it fork now and then.
#define _GNU_SOURCE
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define PAGE 4096UL
#define MOST (24UL << 20)

static int forks;
static double seconds;

static uint64_t next(uint64_t *state) {
    uint64_t x = *state += 0x9e3779b97f4a7c15u;
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
    x = (x ^ x >> 27) * 0x94d049bb133111ebu;
    return x ^ x >> 31;
}

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec + t.tv_nsec * 1e-9;
}

static void wrong(const char *what, size_t page, uint64_t is, uint64_t was) {
    fprintf(stderr, "%s: page %zu holds %llx, not %llx\n", what, page, (unsigned long long)is, (unsigned long long)was);
    _exit(1);
}

// Every page is all zeros, or all one word.
static void check(const char *what, const uint64_t *area, const uint64_t *model, size_t pages) {
    for (size_t page = 0; page < pages; page++)
        for (size_t word = 0; word < PAGE / 8; word += 61) {
            uint64_t found = area[page * (PAGE / 8) + word];
            if (found != model[page]) wrong(what, page, found, model[page]);
        }
}

static void fill(uint64_t *area, uint64_t *model, size_t page, uint64_t value) {
    for (size_t word = 0; word < PAGE / 8; word++) area[page * (PAGE / 8) + word] = value;
    model[page] = value;
}

static void *churn(void *seed) {
    uint64_t state = (uintptr_t)seed;
    double until = now() + seconds;
    unsigned long rounds = 0;
    while (now() < until) {
        size_t pages = (1 + next(&state) % (MOST / PAGE)), room = pages;
        uint64_t *model = calloc(MOST / PAGE * 2, 8);
        // Half of them as malloc does it, half by our own hand.
        int own = next(&state) & 1;
        char *block = own ? mmap(0, pages * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0)
                          : malloc(pages * PAGE + PAGE);
        if (block == MAP_FAILED || !block) exit(2);
        uint64_t *area = (uint64_t *)(own ? (uintptr_t)block : ((uintptr_t)block + PAGE - 1) / PAGE * PAGE);
        if (!own) memset(area, 0, 64 * PAGE < pages * PAGE ? 64 * PAGE : pages * PAGE);
        size_t known = own ? pages : (pages < 64 ? pages : 64);
        // In order, as a program grows; a page that was never written is zero if we mapped it.
        for (size_t page = 0; page < pages; page++) {
            if (own && area[page * (PAGE / 8) + next(&state) % (PAGE / 8)] != 0) wrong("fresh", page, 1, 0);
            fill(area, model, page, next(&state) | 1);
            if (page >= known) known = page + 1;
            if (own && next(&state) % 997 == 0) {
                size_t from = next(&state) % (page + 1), count = 1 + next(&state) % (pages - from);
                switch (next(&state) % 4) {
                case 0: // Discarded, ahead of the growth too.
                    madvise(area + from * (PAGE / 8), count * PAGE, MADV_DONTNEED);
                    memset(model + from, 0, count * 8);
                    break;
                case 1: // Out of reach, and back.
                    mprotect(area + from * (PAGE / 8), count * PAGE, PROT_NONE);
                    sched_yield();
                    mprotect(area + from * (PAGE / 8), count * PAGE, PROT_READ | PROT_WRITE);
                    break;
                case 2: // Moved as a whole, and grown.
                    if (pages + 256 <= MOST / PAGE * 2 && room == pages) {
                        char *moved = mremap(area, pages * PAGE, (pages + 256) * PAGE, MREMAP_MAYMOVE);
                        if (moved == MAP_FAILED) break; // Two mappings, since case 3.
                        area = (uint64_t *)moved;
                        pages += 256, room = pages;
                    }
                    break;
                case 3: // Unmapped at the end, and mapped anew in the same place.
                    if (page + 2 < pages) {
                        char *tail = (char *)area + (page + 1) * PAGE;
                        munmap(tail, (pages - page - 1) * PAGE);
                        if (mmap(tail, (pages - page - 1) * PAGE, PROT_READ | PROT_WRITE,
                                 MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0) != (void *)tail)
                            pages = room = page + 1; // Another thread was faster.
                        else
                            memset(model + page + 1, 0, (pages - page - 1) * 8);
                    }
                    break;
                }
            }
        }
        check("grown", area, model, pages);
        if (forks && next(&state) % 4 == 0) {
            pid_t child = fork();
            if (child == 0) {
                check("child", area, model, pages);
                for (size_t page = 0; page < pages; page += 7) fill(area, model, page, next(&state) | 1);
                check("child wrote", area, model, pages);
                _exit(0);
            }
            for (size_t page = 3; page < pages; page += 11) fill(area, model, page, next(&state) | 1);
            int status = 0;
            if (child > 0 && (waitpid(child, &status, 0) != child || status)) {
                fprintf(stderr, "a child ended with %x\n", status);
                _exit(1);
            }
            check("parent", area, model, pages);
        }
        if (own) munmap(area, pages * PAGE);
        else free(block);
        free(model);
        rounds++;
    }
    return (void *)rounds;
}

int main(int count, char **arguments) {
    seconds = count > 1 ? atof(arguments[1]) : 1;
    forks = count > 2;
    pthread_t threads[3];
    unsigned long rounds = 0;
    for (uintptr_t t = 0; t < 3; t++) pthread_create(&threads[t], 0, churn, (void *)(t + 1));
    for (int t = 0; t < 3; t++) {
        void *did;
        pthread_join(threads[t], &did);
        rounds += (unsigned long)did;
    }
    printf("%s\n", rounds ? "whole" : "nothing done");
    return rounds == 0;
}

/* A program that brings an allocator, as Firefox does: the C names and those of its arenas, exported by its file.
   Its objects are never given back, and it counts its calls. With LESS it lacks one of the names. */
#define _GNU_SOURCE
#include <errno.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Nobody may know what they do to registers: they will be others. */
#define OWN __attribute__((visibility("default"), noipa, aligned(32)))

static char room[1 << 22] __attribute__((aligned(64)));
static size_t used;
static volatile int calls;

static void *take(size_t align, size_t size) {
    calls++;
    used = (used + align - 1) / align * align;
    char *object = room + used;
    used += size;
    return used > sizeof room ? NULL : object;
}

OWN void *malloc(size_t size) { return take(16, size); }
OWN void *calloc(size_t count, size_t size) { return take(16, count * size); }
OWN void *realloc(void *old, size_t size) {
    char *new = take(16, size);
    for (size_t at = 0; old && at < size; at++) new[at] = ((char *)old)[at];
    return new;
}
OWN void free(void *object) { calls += object != NULL; }
OWN void *memalign(size_t align, size_t size) { return take(align, size); }
OWN int posix_memalign(void **place, size_t align, size_t size) { *place = take(align, size); return 0; }
OWN size_t malloc_usable_size(void *object) { calls++; return object ? 1 : 0; }
OWN void *moz_arena_malloc(size_t arena, size_t size) { return take(16, size + arena * 0); }
OWN void *moz_arena_calloc(size_t arena, size_t count, size_t size) { return take(16, count * size + arena * 0); }
OWN void *moz_arena_realloc(size_t arena, void *old, size_t size) { calls++; return realloc(old, size + arena * 0); }
OWN void moz_arena_free(size_t arena, void *object) { calls += 1 + (int)arena * 0; free(object); }
#ifndef LESS
OWN void *moz_arena_memalign(size_t arena, size_t align, size_t size) { return take(align, size + arena * 0); }
#endif

#define CHECK(what) if (!(what)) { printf("line %d: %s\n", __LINE__, #what); return 1; }

int main(void) {
    /* What was allocated before the detour stays readable; freed, it stays; resized, it is copied. */
    static char early[64] __attribute__((aligned(16))) = "early";
    int before = calls;
    char *object = malloc(100);
    CHECK(object);
    strcpy(object, "text");
    object = realloc(object, 5000);
    CHECK(object && !strcmp(object, "text"));
    int ours = malloc_usable_size(object) >= 5000;
    free(object);
    char *zero = calloc(10, 100);
    CHECK(zero && !zero[0] && !zero[999]);
    void *aligned = NULL;
    CHECK(posix_memalign(&aligned, 256, 10) == 0 && (size_t)aligned % 256 == 0);
    CHECK((size_t)memalign(128, 10) % 128 == 0);
    char *arena = moz_arena_malloc(7, 50);
    strcpy(arena, "arena");
    arena = moz_arena_realloc(7, arena, 100000);
    CHECK(arena && !strcmp(arena, "arena"));
    moz_arena_free(7, arena);
    CHECK(moz_arena_calloc(7, 3, 3));
    if (ours) {
        CHECK(malloc_usable_size(early) == 0);
        free(early);
        char *moved = realloc(early, 3000);
        CHECK(moved && moved != early && !strcmp(moved, "early"));
        free(moved);
        CHECK(realloc(malloc(3), 0));
    }
    char text[64];
    snprintf(text, sizeof text, "%s, %s\n", ours ? "the heap" : "its own", calls == before ? "no calls" : "calls");
    fputs(text, stdout);
    return 0;
}

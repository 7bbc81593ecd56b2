// Asks the C allocator every question that has a defined or customary answer and prints the answers. The test runs it
// with and without the library: the two outputs must be the same.
#define _GNU_SOURCE
#include <errno.h>
#include <malloc.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static volatile size_t huge = (size_t)PTRDIFF_MAX + 1, max = SIZE_MAX;

static void say(const char *what, int answer) { printf("%-44s %d\n", what, answer); }

static int aligned(const void *p, size_t a) { return p && (uintptr_t)p % a == 0; }

static int zero(const unsigned char *p, size_t n) {
    for (size_t i = 0; i < n; i++)
        if (p[i]) return 0;
    return 1;
}

int main(void) {
    char *p, *q;
    errno = 0;
    p = malloc(0), q = malloc(0);
    say("malloc(0) is an object", p != NULL);
    say("malloc(0) twice are two", p != q);
    free(p), free(q), free(NULL);
    say("success leaves errno", errno);

    for (size_t n = 16; n < 3 << 20; n = n * 5 / 3 + 1) {
        p = malloc(n);
        if (!aligned(p, 16)) printf("malloc(%zu) not aligned to 16\n", n);
        if (malloc_usable_size(p) < n) printf("usable size of %zu too small\n", n);
        memset(p, 0xa5, malloc_usable_size(p));
        free(p);
        q = calloc(1, n);
        if (!zero((unsigned char *)q, n)) printf("calloc(%zu) not zero\n", n);
        memset(q, 0xff, n);
        free(q);
    }

    errno = 0, p = malloc(huge);
    say("malloc(PTRDIFF_MAX + 1) fails", p == NULL), say("  errno", errno);
    errno = 0, p = malloc(max);
    say("malloc(SIZE_MAX) fails", p == NULL), say("  errno", errno);
    errno = 0, p = malloc(max - 4096);
    say("malloc(SIZE_MAX - 4096) fails", p == NULL), say("  errno", errno);
    errno = 0, p = malloc(huge - 1);
    say("malloc(PTRDIFF_MAX) fails", p == NULL), say("  errno", errno);
    errno = 0, p = calloc(max / 2, 3);
    say("calloc overflow fails", p == NULL), say("  errno", errno);
    errno = 0, p = calloc(huge, 1);
    say("calloc(PTRDIFF_MAX + 1) fails", p == NULL), say("  errno", errno);
    p = calloc(0, 8);
    say("calloc(0, 8) is an object", p != NULL), free(p);
    p = calloc(8, 0);
    say("calloc(8, 0) is an object", p != NULL), free(p);

    p = realloc(NULL, 40);
    say("realloc(NULL, n) allocates", p != NULL);
    strcpy(p, "kept across every resize");
    for (size_t n = 41; n < 4 << 20; n = n * 3 / 2) p = realloc(p, n);
    say("realloc keeps when growing", strcmp(p, "kept across every resize") == 0);
    errno = 0, q = realloc(p, huge);
    say("realloc to too much fails", q == NULL), say("  errno", errno);
    say("  and leaves the object", strcmp(p, "kept across every resize") == 0);
    for (size_t n = 4 << 20; n > 40; n = n * 2 / 3) p = realloc(p, n);
    p[24] = 0;
    say("realloc keeps when shrinking", strcmp(p, "kept across every resize") == 0);
    errno = 0, q = realloc(p, 0);
    say("realloc(p, 0) is null", q == NULL), say("  errno", errno);
    q = realloc(NULL, 0);
    say("realloc(NULL, 0) is an object", q != NULL), free(q);
    errno = 0, q = reallocarray(NULL, max / 2, 3);
    say("reallocarray overflow fails", q == NULL), say("  errno", errno);
    q = reallocarray(NULL, 10, 10);
    say("reallocarray allocates", q != NULL);
    q = reallocarray(q, 0, 10);
    say("reallocarray to 0 is null", q == NULL);

    for (size_t a = 8; a <= 1 << 22; a *= 2)
        for (size_t n = 0; n <= 100000; n = n * 7 + 1) {
            void *r = NULL;
            int e = posix_memalign(&r, a, n);
            if (e || !aligned(r, a)) printf("posix_memalign(%zu, %zu): %d %p\n", a, n, e, r);
            if (malloc_usable_size(r) < n) printf("posix_memalign(%zu, %zu): usable too small\n", a, n);
            memset(r, 1, n), free(r);
            r = memalign(a, n);
            if (!aligned(r, a)) printf("memalign(%zu, %zu): %p\n", a, n, r);
            memset(r, 2, n);
            r = realloc(r, n + 1000);
            say(r && (n == 0 || *(char *)r == 2) ? "." : "realloc of an aligned object loses bytes", 0);
            free(r);
        }
    void *r = (void *)1;
    say("posix_memalign(0) is EINVAL", posix_memalign(&r, 0, 8)), say("  result untouched", r == (void *)1);
    say("posix_memalign(4) is EINVAL", posix_memalign(&r, 4, 8));
    say("posix_memalign(24) is EINVAL", posix_memalign(&r, 24, 8));
    say("posix_memalign of too much is ENOMEM", posix_memalign(&r, 64, huge));
    say("  result untouched", r == (void *)1);
    errno = 0, p = memalign(64, max - 64);
    say("memalign of too much fails", p == NULL), say("  errno", errno);
    errno = 0, p = memalign((size_t)1 << 63, 8);
    say("memalign(2^63) fails", p == NULL);
    errno = 0, p = memalign(((size_t)1 << 63) + 1, 8);
    say("memalign(2^63 + 1) fails", p == NULL), say("  errno", errno);
    p = memalign(0, 8);
    say("memalign(0) allocates", p != NULL), free(p);
    p = memalign(48, 8);
    say("memalign(48) rounds up to 64", aligned(p, 64)), free(p);
    p = aligned_alloc(64, 65);
    say("aligned_alloc(64, 65)", aligned(p, 64)), free(p);
    p = valloc(10);
    say("valloc", aligned(p, sysconf(_SC_PAGESIZE))), free(p);
    p = pvalloc(10);
    say("pvalloc", aligned(p, sysconf(_SC_PAGESIZE)));
    say("pvalloc usable", malloc_usable_size(p) >= (size_t)sysconf(_SC_PAGESIZE)), free(p);
    errno = 0, p = pvalloc(max);
    say("pvalloc overflow fails", p == NULL), say("  errno", errno);
    say("malloc_usable_size(NULL)", (int)malloc_usable_size(NULL));
    say("mallopt", mallopt(M_MMAP_THRESHOLD, 1 << 20));
    say("malloc_info bad option", malloc_info(1, stdout));

    struct mallinfo2 before = mallinfo2();
    p = malloc(3 << 20);
    memset(p, 1, 3 << 20);
    struct mallinfo2 after = mallinfo2();
    size_t grown = after.uordblks + after.hblkhd - before.uordblks - before.hblkhd;
    say("mallinfo2 sees 3 MiB", grown >= 3 << 20 && grown < 4 << 20);
    free(p);
    malloc_trim(0);

    // free keeps errno, also where it gives memory back.
    for (size_t n = 1; n < 64 << 20; n *= 4) {
        p = malloc(n);
        memset(p, 1, n);
        errno = 4711;
        free(p);
        if (errno != 4711) printf("free of %zu changed errno\n", n);
    }
    return 0;
}

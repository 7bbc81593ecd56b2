// One kind of misuse, by name, of an object of the size given. Says "passed" if nothing stopped it before its end.
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

// What the program does next, as any program does: it allocates, and frees.
static void go_on(void) { free(malloc(300)); }

int main(int argc, char **argv) {
    const char *kind = argv[1];
    size_t size = strtoul(argv[2], NULL, 0), far = 1 << 20;
    volatile unsigned char *p = malloc(size), *q;
    static unsigned char not_heap[64] __attribute__((aligned(16)));
    int is_ok = 1;
#define IS(name) (!strcmp(kind, name))
    if (IS("free twice")) free((void *)p), free((void *)p);
    else if (IS("free twice, another between")) q = malloc(size), free((void *)p), free((void *)q), free((void *)p);
    else if (IS("free twice, much between")) {
        free((void *)p);
        for (int i = 0; i < 2000; i++) free(malloc(size));
        free((void *)p);
    } else if (IS("free twice, handed out between")) {
        free((void *)p), q = malloc(size), is_ok = q != p;
        if (!is_ok) free((void *)p), free((void *)q);
    } else if (IS("resize after free")) free((void *)p), p = realloc((void *)p, size + 1), go_on();
    else if (IS("free inside")) free((void *)(p + 8));
    else if (IS("free inside, aligned")) free((void *)(p + (size > 32 ? size / 32 * 16 : 16)));
    else if (IS("free inside, by 1")) free((void *)(p + 1));
    else if (IS("free beside")) free((void *)(p + (size + 15) / 16 * 16));
    else if (IS("free far off")) free((void *)(p + (1 << 30)));
    else if (IS("free of a static")) free(not_heap);
    else if (IS("free of the stack")) { char local[64]; free(local); }
    else if (IS("write 1 behind")) p[size] ^= 1, go_on();
    else if (IS("write 8 behind")) memset((void *)(p + size), 1, 8), go_on();
    else if (IS("write 0 behind")) p[size] = 0, go_on();
    else if (IS("write 1 before")) p[-1] ^= 1, go_on();
    else if (IS("write 8 before")) memset((void *)(p - 8), 1, 8), go_on();
    else if (IS("write a page behind")) p[(size + 4095) / 4096 * 4096 + 4095] ^= 1, go_on();
    else if (IS("write a page before")) p[-4096] ^= 1, go_on();
    else if (IS("write 32 behind")) memset((void *)p, 0, size + 32), go_on();
    else if (IS("write 1 MiB behind")) p[size - 1 + far] ^= 1, go_on();
    else if (IS("write 1 MiB before")) p[-(intptr_t)far] ^= 1, go_on();
    else if (IS("write all of 1 MiB behind")) memset((void *)p, 0, size + far), go_on();
    else if (IS("write after free")) free((void *)p), memset((void *)p, 1, size), go_on();
    else if (IS("write after free, at exit")) setvbuf(stdout, NULL, _IONBF, 0), free((void *)p), p[size / 2] = 1;
    else if (IS("read after free")) {
        memset((void *)p, 0xa5, size), free((void *)p);
        for (size_t at = 0; at < size; at++) is_ok &= p[at] != 0xa5;
    } else if (IS("same address again")) free((void *)p), is_ok = malloc(size) != p;
    else if (IS("contents of before")) {
        memset((void *)p, 1, size), free((void *)p);
        for (int i = 0; i < 4000 && is_ok; i++) {
            q = malloc(size);
            for (size_t at = 0; at < size && at < 4096; at++) is_ok &= q[at] == 0;
            memset((void *)q, 1, size), free((void *)q);
        }
    } else if (IS("read of nothing")) q = malloc(0), is_ok = *q < 256 ? 0 : 1;
    else if (IS("nothing wrong")) free((void *)p), go_on();
    else return 3;
    puts(is_ok ? "done" : "passed");
    (void)argc;
    return 0;
}

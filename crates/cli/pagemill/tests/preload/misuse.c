// One misuse of the heap, by name.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int main(int argc, char **argv) {
    char *volatile p = malloc(100), *volatile other = malloc(100);
    static char not_heap[64] __attribute__((aligned(16)));
    memset(p, 1, 100);
    void *misused = p;
    if (!strcmp(argv[1], "static")) misused = not_heap;
    if (!strcmp(argv[1], "inside")) misused = p + 16;
    fprintf(stderr, "%p\n", misused);
    if (!strcmp(argv[1], "twice")) {
        free(p);
        free(p);
    } else if (!strcmp(argv[1], "later")) {
        free(p);
        for (int i = 0; i < 5000; i++) free(malloc(200));
        free(other);
        free(p);
    } else if (!strcmp(argv[1], "static")) {
        free(not_heap);
    } else if (!strcmp(argv[1], "inside")) {
        free(p + 16);
    } else if (!strcmp(argv[1], "large")) {
        char *volatile l = malloc(5 << 20);
        fprintf(stderr, "%p\n", (void *)l);
        free(l);
        free(l);
    }
    (void)argc;
    return 0;
}

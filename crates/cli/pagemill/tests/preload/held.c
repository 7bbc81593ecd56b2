// Allocates and frees 4 MiB in small objects: mallinfo2 tells them as in use before, and not after.
#include <malloc.h>
#include <stdio.h>
#include <stdlib.h>

int main(void) {
    enum { COUNT = 4096, SIZE = 1000 };
    static void *objects[COUNT];
    size_t before = mallinfo2().uordblks;
    for (int i = 0; i < COUNT; i++) objects[i] = malloc(SIZE);
    size_t during = mallinfo2().uordblks;
    for (int i = 0; i < COUNT; i++) free(objects[i]);
    size_t after = mallinfo2().uordblks;
    fprintf(stderr, "%zu %zu %zu\n", before, during, after);
    return during < before + COUNT * SIZE || after > before + COUNT * SIZE / 8;
}

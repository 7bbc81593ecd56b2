// Objects of two stripes of 16 MiB never lie in one mapping.
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { OBJECTS = 96 << 10, SIZE = 1000 };

static char *objects[OBJECTS];

static int compare(const void *a, const void *b) {
    uintptr_t x = *(uintptr_t *)a, y = *(uintptr_t *)b;
    return x < y ? -1 : x > y;
}

int main(void) {
    for (int i = 0; i < OBJECTS; i++) memset(objects[i] = malloc(SIZE), 1, SIZE);
    qsort(objects, OBJECTS, sizeof *objects, compare);
    FILE *maps = fopen("/proc/self/maps", "r");
    char line[4096];
    int next = 0, stripes = 1;
    for (int i = 1; i < OBJECTS; i++) stripes += (uintptr_t)objects[i] >> 24 != (uintptr_t)objects[i - 1] >> 24;
    while (maps && next < OBJECTS && fgets(line, sizeof line, maps)) {
        uintptr_t from, to;
        if (sscanf(line, "%lx-%lx", &from, &to) != 2) continue;
        uintptr_t first = (uintptr_t)objects[next];
        for (; next < OBJECTS && (uintptr_t)objects[next] >= from && (uintptr_t)objects[next] < to; next++)
            if ((uintptr_t)objects[next] >> 24 != first >> 24) {
                printf("one mapping for two stripes: %s", line);
                return 1;
            }
    }
    puts(next == OBJECTS && stripes > 3 ? "several stripes, each with mappings of its own" : "not all objects found");
    return 0;
}

// Makes a heap that is a sixteenth full and rests but for a look at itself twice a second, some milliseconds of work:
// whether compaction gives back most of it although the program has earned little CPU time for that.
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { SLOT = 256, PAGE = 16, PAGES = 192 << 10, MOST_MIB = PAGES / 256 / 3, PATIENCE_S = 30 };

static unsigned char *slots[PAGES * PAGE];

static long resident_mib(void) {
    char line[256];
    long kib = 0;
    FILE *f = fopen("/proc/self/smaps_rollup", "r");
    while (f && fgets(line, sizeof line, f)) sscanf(line, "Pss: %ld", &kib);
    if (f) fclose(f);
    return kib >> 10;
}

int main(void) {
    unsigned random = 1;
    if (geteuid()) return puts("not root"), 0;
    for (int i = 0; i < PAGES * PAGE; i++) memset(slots[i] = malloc(SLOT), i, SLOT);
    for (int page = 0; page < PAGES; page++) {
        random = random * 1103515245 + 12345;
        for (int i = 0; i < PAGE; i++)
            if (i != (random >> 16) % PAGE) free(slots[page * PAGE + i]), slots[page * PAGE + i] = 0;
    }
    long before = resident_mib(), after = before;
    for (int look = 0; look < 2 * PATIENCE_S && after > MOST_MIB; look++) usleep(500000), after = resident_mib();
    for (int i = 0; i < PAGES * PAGE; i++)
        for (int byte = 0; slots[i] && byte < SLOT; byte++)
            if (slots[i][byte] != (unsigned char)i) return puts("an object has changed"), 1;
    if (after > MOST_MIB) return printf("from %ld MiB to %ld MiB in %d s\n", before, after, PATIENCE_S), 1;
    puts("given back");
    return 0;
}

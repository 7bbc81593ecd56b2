// Sixty large objects that were written to and freed leave hardly a mapping behind, though their addresses are held
// back: each one is copied by every fork.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int mappings(void) {
    FILE *maps = fopen("/proc/self/maps", "r");
    int lines = 0;
    for (int c; maps && (c = fgetc(maps)) != EOF;) lines += c == '\n';
    if (maps) fclose(maps);
    return lines;
}

int main(void) {
    enum { COUNT = 60, SIZE = 300000 };
    static char *objects[COUNT];
    int before = mappings();
    for (int i = 0; i < COUNT; i++) memset(objects[i] = malloc(SIZE), i, SIZE);
    int during = mappings();
    for (int i = 0; i < COUNT; i++) free(objects[i]);
    int after = mappings();
    fprintf(stderr, "%d %d %d\n", before, during, after);
    return !before || after > before + COUNT / 4;
}

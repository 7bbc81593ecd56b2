// Two functions ask for memory of the same size. What the one got is filled, of what the other got a page in 2 MiB is
// touched. Ends when some memory is on huge pages, or after as many hundredths of a second as its argument says.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define SIZE (32UL << 20)

__attribute__((noinline)) static char *for_filling(void) {
    char *memory = malloc(SIZE);
    if (!memory) exit(2);
    return memory;
}

__attribute__((noinline)) static char *for_few(void) {
    char *memory = malloc(SIZE);
    if (!memory) exit(2);
    return memory;
}

static int some_is_huge(void) {
    char line[256];
    long kilobytes = 0, found = 0;
    FILE *smaps = fopen("/proc/self/smaps", "r");
    while (smaps && fgets(line, sizeof line, smaps))
        if (sscanf(line, "AnonHugePages: %ld", &kilobytes) == 1) found |= kilobytes;
    if (smaps) fclose(smaps);
    return found != 0;
}

int main(int count, char **arguments) {
    int patience = count > 1 ? atoi(arguments[1]) : 0;
    char *filled = for_filling(), *few = for_few();
    for (size_t at = 0; at < SIZE; at += 4096) filled[at] = 1;
    for (size_t at = 0; at < SIZE; at += 2UL << 20) few[at] = 1;
    for (int wait = 0; wait < patience && !some_is_huge(); wait++) usleep(10000);
    puts(filled[SIZE - 4096] == 1 && few[0] == 1 ? "whole" : "torn");
    return 0;
}

// Takes memory until there is no more (RLIMIT_AS), and goes on living.
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

static char *taken[1 << 20];

int main(void) {
    for (int size = 100; size <= 10 << 20; size *= 10) {
        struct rlimit limit = {600 << 20, 600 << 20};
        setrlimit(RLIMIT_AS, &limit);
        int n = 0;
        errno = 0;
        while (n < 1 << 20 && (taken[n] = malloc(size))) memset(taken[n++], 1, size < 4096 ? size : 4096);
        int full = errno == ENOMEM || n == 1 << 20;
        for (int i = 0; i < n; i++) free(taken[i]);
        char *again = malloc(size);
        printf("%d: %s, %s\n", size, full ? "full" : "not full", again ? "goes on" : "is stuck");
        free(again);
    }
    return 0;
}

// Takes objects of one size until there is no more memory (RLIMIT_AS), frees them and goes on living.
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

static char *taken[1 << 20];

int main(int argc, char **argv) {
    int size = argc > 1 ? atoi(argv[1]) : 100;
    struct rlimit limit = {300 << 20, 300 << 20};
    setrlimit(RLIMIT_AS, &limit);
    int n = 0;
    errno = 0;
    while (n < 1 << 20 && (taken[n] = malloc(size))) memset(taken[n++], 1, size < 4096 ? size : 4096);
    int full = errno == ENOMEM || n == 1 << 20;
    for (int i = 0; i < n; i++) free(taken[i]);
    char *again = malloc(size);
    printf("%d: %s, %s\n", size, full ? "full" : "not full", again ? "goes on" : "is stuck");
    free(again);
    return 0;
}

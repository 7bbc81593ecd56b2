// Ten thousand short threads, each of which allocates, frees what another allocated, leaves objects to a late
// destructor and ends. Prints the growth of anonymous memory over the last nine thousand.
#define _GNU_SOURCE
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static pthread_key_t keys[40];
static char *handed;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

// Arms itself again until the last round, and allocates and frees in each.
static void late(void *value) {
    char *again = malloc(100);
    memset(again, 1, 100);
    free(value);
    long round = (long)pthread_getspecific(keys[1]);
    if (round < 3) {
        pthread_setspecific(keys[1], (void *)(round + 1));
        pthread_setspecific(keys[0], again);
    } else {
        free(again);
    }
}

static void *shortly(void *unused) {
    char *mine[50];
    for (int i = 0; i < 50; i++) memset(mine[i] = malloc(10 + i * 37), i, 10 + i * 37);
    pthread_mutex_lock(&lock);
    free(handed);
    handed = malloc(500);
    pthread_mutex_unlock(&lock);
    pthread_setspecific(keys[0], malloc(64));
    pthread_setspecific(keys[39], malloc(64));
    for (int i = 0; i < 50; i++) free(mine[i]);
    return unused;
}

static long anonymous_kb(void) {
    char line[256];
    long kb = 0;
    FILE *f = fopen("/proc/self/status", "r");
    while (fgets(line, sizeof line, f)) sscanf(line, "RssAnon: %ld", &kb);
    fclose(f);
    return kb;
}

int main(void) {
    for (int i = 0; i < 40; i++) pthread_key_create(&keys[i], i == 0 ? late : i == 39 ? free : NULL);
    long before = 0;
    for (int i = 0; i < 10000; i += 4) {
        pthread_t t[4];
        for (int j = 0; j < 4; j++)
            if (pthread_create(&t[j], NULL, shortly, NULL)) return 2;
        for (int j = 0; j < 4; j++) pthread_join(t[j], NULL);
        if (i == 1000) before = anonymous_kb();
    }
    printf("%ld\n", anonymous_kb() - before);
    return 0;
}

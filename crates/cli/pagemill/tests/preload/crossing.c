// Threads that replace objects of many sizes and hand none over, a large object that grows, and a fork, checked byte by
// byte: small enough for an emulator.
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { OBJECTS = 4000, STEPS = 200000, MEGA = 1 << 20 };

static void *replace(void *number) {
    static __thread char *object[OBJECTS];
    static __thread unsigned size[OBJECTS];
    unsigned random = (unsigned)(size_t)number;
    unsigned long damaged = 0;
    for (int i = 0; i < STEPS; i++) {
        random = random * 1664525u + 1013904223u;
        unsigned k = (random >> 8) % OBJECTS;
        if (object[k]) {
            for (unsigned j = 0; j < size[k]; j += 61) damaged += object[k][j] != (char)k;
            free(object[k]), object[k] = NULL;
        } else {
            size[k] = 1 + (random >> 4) % 2000;
            memset(object[k] = malloc(size[k]), (int)k, size[k]);
        }
    }
    return (void *)damaged;
}

int main(void) {
    pthread_t thread[4];
    unsigned long damaged = 0;
    for (size_t i = 0; i < 4; i++) pthread_create(&thread[i], NULL, replace, (void *)(i + 1));
    for (int i = 0; i < 4; i++) {
        void *seen;
        pthread_join(thread[i], &seen);
        damaged += (unsigned long)seen;
    }
    char *large = malloc(50 * MEGA);
    memset(large, 1, 50 * MEGA);
    large = realloc(large, 80 * MEGA);
    for (int i = 0; i < 50 * MEGA; i += 4096) damaged += large[i] != 1;
    free(large);
    int status = -1;
    pid_t child = fork();
    if (child == 0) {
        char *own = malloc(100);
        strcpy(own, "child");
        _exit(own[0] != 'c');
    }
    waitpid(child, &status, 0);
    printf("damaged %lu, child %d, page %ld\n", damaged, status, sysconf(_SC_PAGESIZE));
    return 0;
}

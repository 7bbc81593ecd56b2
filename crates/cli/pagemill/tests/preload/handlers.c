// Signal handlers that allocate while the thread is outside malloc, a thread that ends with live objects, and a library
// that is opened and closed many times.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/time.h>
#include <unistd.h>

static volatile sig_atomic_t ran;

static void handler(int signal) {
    int kept = errno;
    char *p = malloc(100 + ran % 1000);
    memset(p, signal, 100);
    free(p);
    errno = kept;
    ran++;
}

int main(void) {
    char stack[65536];
    stack_t other = {.ss_sp = stack, .ss_size = sizeof stack};
    sigaltstack(&other, NULL);
    struct sigaction action = {.sa_handler = handler, .sa_flags = SA_ONSTACK | SA_RESTART};
    sigaction(SIGALRM, &action, NULL);
    struct itimerval often = {{0, 500}, {0, 500}};
    setitimer(ITIMER_REAL, &often, NULL);
    volatile unsigned long x = 1;
    while (ran < 500)
        for (int i = 0; i < 1000; i++) x = x * 3 + 1;
    setitimer(ITIMER_REAL, &(struct itimerval){0}, NULL);
    for (int i = 0; i < 200; i++) {
        void *library = dlopen("libm.so.6", RTLD_NOW | RTLD_LOCAL);
        double (*cosine)(double) = (double (*)(double))dlsym(library, "cos");
        if (!cosine || cosine(0) != 1) return 3;
        dlclose(library);
        if (dlopen("/nonexistent.so", RTLD_NOW)) return 4;
        if (!dlerror()) return 5;
    }
    puts("handlers ran");
    return 0;
}

/* One error of a program at a time: `misuse KIND`. Reaching the end (status 0, `survived`) means
 * that the error was not noticed. */
#include "stress.h"
#include <malloc.h>
#include <sys/mman.h>

static void *volatile object;
static void *free_it(void *argument) {
    free(argument);
    return NULL;
}
static void in_another_thread(void *at) {
    pthread_t thread;
    CHECK(!pthread_create(&thread, NULL, free_it, at), "pthread_create");
    pthread_join(thread, NULL);
}
static void churn(size_t size, int n) {
    void **all = (void **)malloc((size_t)n * sizeof *all);
    for (int i = 0; i < n; i++) all[i] = malloc(size);
    for (int i = 0; i < n; i++) free(all[i]);
    free(all);
}
int main(int count, char **arguments) {
    CHECK(count > 1, "usage: misuse KIND");
    const char *kind = arguments[1];
    char on_stack[256];
    setvbuf(stdout, NULL, _IONBF, 0);
    /* The object has live neighbours, so that its span stays. */
    void *neighbours[32];
    for (int i = 0; i < 16; i++) neighbours[i] = malloc(64);
    object = malloc(64);
    for (int i = 16; i < 32; i++) neighbours[i] = malloc(64);
    memset(object, 0x41, 64);
    char *at = (char *)object;
#define IS(name) (!strcmp(kind, name))
    if (IS("double")) free(at), free(at);
    else if (IS("double-later")) {
        free(at);
        for (int i = 0; i < 8; i++) free(neighbours[i]);
        free(at);
    } else if (IS("double-flushed")) {
        /* Thousands of other frees of the class move the object from the cache to its span. */
        void **all = (void **)malloc(20000 * sizeof *all);
        for (int i = 0; i < 20000; i++) all[i] = malloc(64);
        free(at);
        for (int i = 0; i < 20000; i++) free(all[i]);
        free(at);
    } else if (IS("double-thread")) {
        free(at);
        in_another_thread(at);
    } else if (IS("double-after-thread")) {
        in_another_thread(at);
        free(at);
    } else if (IS("double-large")) {
        char *large = (char *)malloc(200000);
        free(large);
        free(large);
    } else if (IS("double-own-mapping")) {
        char *large = (char *)malloc(8000000);
        free(large);
        free(large);
    } else if (IS("double-realloc")) {
        free(at);
        object = realloc(at, 100);
    } else if (IS("double-tiny")) {
        char *tiny = (char *)malloc(8);
        char *more = (char *)malloc(8);
        free(tiny);
        free(tiny);
        free(more);
    } else if (IS("wild-stack")) free(on_stack + 16);
    else if (IS("wild-interior")) free(at + 16);
    else if (IS("wild-misaligned")) free(at + 1);
    else if (IS("wild-interior-large")) {
        char *large = (char *)malloc(200000);
        free(large + 4096);
    } else if (IS("wild-interior-own-mapping")) {
        char *large = (char *)malloc(8000000);
        free(large + 65536);
    } else if (IS("wild-mapping")) {
        free(mmap(NULL, 65536, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    } else if (IS("wild-static")) free((void *)(uintptr_t)&object);
    else if (IS("wild-small-integer")) free((void *)16);
    else if (IS("wild-kernel")) free((void *)0xffff888000000000ull);
    else if (IS("wild-noncanonical")) free((void *)0x00dead0000001000ull);
    else if (IS("wild-realloc")) object = realloc(on_stack + 32, 10);
    else if (IS("use-after-free")) {
        free(at);
        memset(at, 0x42, 64);
        churn(64, 200000);
        malloc_trim(0);
    } else if (IS("overflow")) {
        char *slack = (char *)malloc(50);
        memset(slack, 0x43, 51);
        free(slack);
        churn(64, 200000);
    } else if (IS("overflow-large")) {
        /* Level h follows a large object with a page that cannot be written: SIGSEGV. */
        char *large = (char *)malloc(200000);
        size_t usable = malloc_usable_size(large);
        memset(large, 0x43, usable + 4096);
        free(large);
    } else fail("no such kind: %s", kind);
    puts("survived");
    return 0;
}

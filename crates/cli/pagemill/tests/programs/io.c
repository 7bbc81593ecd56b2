/* The kernel writes into heap objects, in every way it can, while the heap is compacted.
 *
 *   io SECONDS SEED FILE WAY...
 *
 * Each WAY is one thread with its own fragmented pool: it takes a random survivor, checks it, lets
 * the kernel write new contents into it, and checks those. FILE holds the words mix(0), mix(1) ... so
 * what a read returns at any offset is known. */
#include "stress.h"
#include <stdatomic.h>
#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <sys/syscall.h>
#ifdef WITH_LIBURING
#include <liburing.h>
#endif

static double seconds;
static const char *file;
static uint64_t file_words;
static atomic_ulong errors, operations, refused;

/* An unexpected result of a system call is the finding; it is counted and named, not fatal. */
static void spurious(const char *way, long result, size_t wanted) {
    if (atomic_fetch_add(&errors, 1) < 20) {
        char line[160];
        int n = snprintf(line, sizeof line, "spurious: %s returned %ld (%s), wanted %zu\n", way, result,
                         result < 0 ? strerror(errno) : "short", wanted);
        if (write(2, line, (size_t)n)) {}
    }
}

struct way {
    const char *name;
    struct pool pool;
    int in, out;
    uint64_t seed;
};

/* Sends the pattern `seed` of `size` bytes into `fd` from this thread's stack. */
static void send_pattern(int fd, size_t size, uint64_t seed) {
    unsigned char bytes[4096];
    fill(bytes, size, seed);
    ssize_t n = write(fd, bytes, size);
    if (n != (ssize_t)size) spurious("write from the stack", n, size);
}
/* Takes the contents as the kernel was asked to leave them, or forgets them after an error. */
static void settle(struct object *o, long n, uint64_t seed, const char *way) {
    if (n == (long)o->size) {
        o->seed = seed;
        object_check(o, way);
    } else {
        spurious(way, n, o->size);
        fill(o->at, o->size, o->seed);
    }
}

static void by_read(struct way *w, struct object *o) {
    uint64_t seed = next(&w->pool.random);
    send_pattern(w->out, o->size, seed);
    settle(o, read(w->in, o->at, o->size), seed, w->name);
}
static void by_recv(struct way *w, struct object *o) {
    uint64_t seed = next(&w->pool.random);
    send_pattern(w->out, o->size, seed);
    settle(o, recv(w->in, o->at, o->size, MSG_WAITALL), seed, w->name);
}
static void by_recvmsg(struct way *w, struct object *o) {
    uint64_t seed = next(&w->pool.random);
    send_pattern(w->out, o->size, seed);
    /* The header and the vector that the kernel reads lie in the heap as well. */
    struct msghdr *m = calloc(1, sizeof *m);
    m->msg_iov = malloc(sizeof *m->msg_iov);
    m->msg_iovlen = 1;
    m->msg_iov->iov_base = o->at;
    m->msg_iov->iov_len = o->size;
    ssize_t n = recvmsg(w->in, m, MSG_WAITALL);
    free(m->msg_iov);
    free(m);
    settle(o, n, seed, w->name);
}
static uint64_t place(struct way *w, size_t size) { return below(&w->pool.random, file_words - size / 8 - 2); }
static void by_pread(struct way *w, struct object *o) {
    uint64_t word = place(w, o->size);
    settle(o, pread(w->in, o->at, o->size, (off_t)(8 * word)), word, w->name);
}
static void by_readv(struct way *w, struct object *first) {
    struct object *all[8] = {first};
    struct iovec *vector = malloc(8 * sizeof *vector);
    size_t n = 1, total = 0;
    while (n < 8) {
        struct object *o = pool_any(&w->pool);
        size_t i = 0;
        while (i < n && all[i] != o) i++;
        if (i == n) all[n++] = o;
    }
    for (size_t i = 0; i < n; i++) {
        /* Whole words, so that the pattern goes on from one object to the next. */
        vector[i].iov_base = all[i]->at;
        vector[i].iov_len = all[i]->size & ~7u;
        total += vector[i].iov_len;
    }
    uint64_t word = place(w, total);
    ssize_t got = preadv(w->in, vector, (int)n, (off_t)(8 * word));
    if (got != (ssize_t)total) spurious(w->name, got, total);
    for (size_t i = 0; i < n; i++) {
        if (got == (ssize_t)total) verify(all[i]->at, vector[i].iov_len, word, w->name);
        word += vector[i].iov_len / 8;
        fill(all[i]->at, all[i]->size, all[i]->seed);
    }
    free(vector);
}
/* The kernel reads from the object: as often met as the other direction. */
static void by_write(struct way *w, struct object *o) {
    unsigned char bytes[4096];
    ssize_t n = write(w->out, o->at, o->size);
    if (n != (ssize_t)o->size) {
        spurious(w->name, n, o->size);
        return;
    }
    n = read(w->in, bytes, o->size);
    if (n != (ssize_t)o->size) spurious("read to the stack", n, o->size);
    else verify(bytes, o->size, o->seed, w->name);
}
/* Writes by pinning pages for a moment, from "another" process. */
static void by_vm_writev(struct way *w, struct object *o) {
    unsigned char bytes[4096];
    uint64_t seed = next(&w->pool.random);
    fill(bytes, o->size, seed);
    struct iovec from = {bytes, o->size}, to = {o->at, o->size};
    settle(o, process_vm_writev(getpid(), &from, 1, &to, 1, 0), seed, w->name);
}
static void by_proc_mem(struct way *w, struct object *o) {
    unsigned char bytes[4096];
    uint64_t seed = next(&w->pool.random);
    fill(bytes, o->size, seed);
    /* The kernel gives a userfaultfd no second try on this path, which is a debugger's: while a page is frozen
     * the write ends before it, with EIO or short. It must never succeed and be lost. */
    ssize_t done = 0;
    while (done < (ssize_t)o->size) {
        ssize_t n = pwrite(w->in, bytes + done, o->size - (size_t)done, (off_t)(uintptr_t)o->at + done);
        if (n > 0) done += n;
        else if (n < 0 && errno == EIO) atomic_fetch_add(&refused, 1);
        else break;
    }
    settle(o, done, seed, w->name);
}

/* Objects for O_DIRECT: aligned to 512 and a multiple of it. */
static void direct_object(struct way *w, struct object *o) {
    size_t size = 512 * (1 + below(&w->pool.random, 4));
    object_free(o);
    o->at = aligned_alloc(512, size);
    CHECK(o->at, "aligned_alloc");
    o->size = (uint32_t)size;
    o->seed = next(&w->pool.random);
    fill(o->at, size, o->seed);
}
static void by_direct(struct way *w, struct object *o) {
    if ((uintptr_t)o->at % 512 || o->size % 512) direct_object(w, o);
    uint64_t word = place(w, o->size + 512) & ~63ull;
    settle(o, pread(w->in, o->at, o->size, (off_t)(8 * word)), word, w->name);
}
/* As `direct`, but the descriptor appears and goes while compaction runs. */
static void by_direct_late(struct way *w, struct object *o) {
    int fd = open(file, O_RDONLY | O_DIRECT | O_CLOEXEC);
    CHECK(fd >= 0, "open O_DIRECT: %s", strerror(errno));
    int kept = w->in;
    w->in = fd;
    for (int i = 0; i < 16; i++) by_direct(w, i ? pool_any(&w->pool) : o);
    w->in = kept;
    close(fd);
}

#ifdef WITH_LIBURING
#define RING_DEPTH 16
static void ring_loop(struct way *w, double until, int direct, int fixed) {
    struct io_uring ring;
    int result = io_uring_queue_init(RING_DEPTH, &ring, 0);
    CHECK(!result, "io_uring_queue_init: %s", strerror(-result));
    int fd = open(file, O_RDONLY | O_CLOEXEC | (direct ? O_DIRECT : 0));
    CHECK(fd >= 0, "open: %s", strerror(errno));
    struct object registered[RING_DEPTH];
    struct iovec vector[RING_DEPTH];
    while (now() < until) {
        if (fixed) {
            /* Pinned from here to the unregistering, and scattered like everything else. */
            for (int i = 0; i < RING_DEPTH; i++) {
                struct object *o = pool_any(&w->pool);
                while (!o->size) o = pool_any(&w->pool);
                if ((uintptr_t)o->at % 512 || o->size % 512) direct_object(w, o);
                registered[i] = *o;
                o->size = 0; /* Not to be chosen again until it is given back below. */
                o->at = (unsigned char *)(uintptr_t)(o - w->pool.objects);
                vector[i].iov_base = registered[i].at;
                vector[i].iov_len = registered[i].size;
                o->seed = (uint64_t)i;
            }
            result = io_uring_register_buffers(&ring, vector, RING_DEPTH);
            CHECK(!result, "io_uring_register_buffers: %s", strerror(-result));
        }
        for (int round = 0; round < (fixed ? 200 : 1) && now() < until; round++) {
            struct object *objects[RING_DEPTH];
            uint64_t words[RING_DEPTH];
            for (int i = 0; i < RING_DEPTH; i++) {
                struct object *o = fixed ? &registered[i] : pool_any(&w->pool);
                for (int k = 0; k < i; k++)
                    if (objects[k] == o) {
                        o = pool_any(&w->pool);
                        k = -1;
                    }
                if (direct && ((uintptr_t)o->at % 512 || o->size % 512)) direct_object(w, o);
                objects[i] = o;
                words[i] = place(w, o->size + 512) & ~63ull;
                struct io_uring_sqe *entry = io_uring_get_sqe(&ring);
                if (fixed) io_uring_prep_read_fixed(entry, fd, o->at, o->size, 8 * words[i], i);
                else io_uring_prep_read(entry, fd, o->at, o->size, 8 * words[i]);
                io_uring_sqe_set_data64(entry, (uint64_t)i);
            }
            result = io_uring_submit(&ring);
            CHECK(result == RING_DEPTH, "io_uring_submit: %d", result);
            for (int done = 0; done < RING_DEPTH; done++) {
                struct io_uring_cqe *entry;
                do result = io_uring_wait_cqe(&ring, &entry);
                while (result == -EINTR);
                CHECK(!result, "io_uring_wait_cqe: %s", strerror(-result));
                int i = (int)io_uring_cqe_get_data64(entry);
                long n = entry->res;
                io_uring_cqe_seen(&ring, entry);
                if (n < 0) errno = (int)-n, n = -1;
                settle(objects[i], n, words[i], w->name);
            }
            atomic_fetch_add(&operations, RING_DEPTH);
        }
        if (fixed) {
            result = io_uring_unregister_buffers(&ring);
            CHECK(!result, "io_uring_unregister_buffers: %s", strerror(-result));
            for (size_t k = 0; k < w->pool.count; k++) {
                struct object *o = &w->pool.objects[k];
                if (!o->size) *o = registered[o->seed];
            }
        }
        for (int i = 0; i < 32; i++) pool_churn(&w->pool);
        object_check(pool_any(&w->pool), w->name);
    }
    close(fd);
    io_uring_queue_exit(&ring);
}
#endif

static void connect_tcp(int pair[2]) {
    int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t length = sizeof address;
    CHECK(!bind(listener, (struct sockaddr *)&address, sizeof address) && !listen(listener, 1) &&
              !getsockname(listener, (struct sockaddr *)&address, &length),
          "loopback: %s", strerror(errno));
    pair[1] = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    CHECK(!connect(pair[1], (struct sockaddr *)&address, sizeof address), "connect: %s", strerror(errno));
    pair[0] = accept(listener, NULL, NULL);
    CHECK(pair[0] >= 0, "accept: %s", strerror(errno));
    close(listener);
}

static const struct {
    const char *name;
    void (*step)(struct way *, struct object *);
    enum { PIPE, UNIX, TCP, CACHED, DIRECT, MEM, RING } kind;
} ways[] = {
    {"read", by_read, PIPE},         {"recv", by_recv, UNIX},        {"recv-tcp", by_recv, TCP},
    {"recvmsg", by_recvmsg, UNIX},   {"pread", by_pread, CACHED},    {"readv", by_readv, CACHED},
    {"write", by_write, PIPE},       {"send", by_write, UNIX},       {"vm-writev", by_vm_writev, CACHED},
    {"proc-mem", by_proc_mem, MEM},  {"direct", by_direct, DIRECT},  {"direct-late", by_direct_late, CACHED},
    {"uring", NULL, RING},           {"uring-fixed", NULL, RING},    {"uring-direct", NULL, RING},
    {"uring-fixed-direct", NULL, RING},
};

static void *run(void *argument) {
    struct way *w = argument;
    size_t which = 0;
    while (which < sizeof ways / sizeof *ways && strcmp(ways[which].name, w->name)) which++;
    CHECK(which < sizeof ways / sizeof *ways, "no such way: %s", w->name);
    int pair[2] = {-1, -1};
    switch (ways[which].kind) {
    case PIPE: CHECK(!pipe(pair), "pipe"); break;
    case UNIX: CHECK(!socketpair(AF_UNIX, SOCK_STREAM, 0, pair), "socketpair"); break;
    case TCP: connect_tcp(pair); break;
    case CACHED: pair[0] = open(file, O_RDONLY); break;
    case DIRECT: pair[0] = open(file, O_RDONLY | O_DIRECT); break;
    case MEM: pair[0] = open("/proc/self/mem", O_RDWR); break;
    case RING: pair[0] = 0; break;
    }
    CHECK(pair[0] >= 0, "%s: open: %s", w->name, strerror(errno));
    w->in = pair[0];
    w->out = pair[1];
    double end = now() + seconds;
    int generation = 0;
    while (goes_on(end)) {
        pool_build(&w->pool, 4000, 8, mix(w->seed + (uint64_t)generation++));
        double until = now() + 1.0;
        if (until > end && now() < end) until = end;
        rest(0.02); /* Undisturbed for a moment: what is written all the time is rightly left alone. */
        if (!ways[which].step) {
#ifdef WITH_LIBURING
            ring_loop(w, until, strstr(w->name, "direct") != NULL, strstr(w->name, "fixed") != NULL);
#endif
        } else {
            while (now() < until) {
                for (int i = 0; i < 24; i++) {
                    struct object *o = pool_any(&w->pool);
                    object_check(o, w->name);
                    ways[which].step(w, o);
                    atomic_fetch_add(&operations, 1);
                }
                pool_churn(&w->pool);
                nap(0.0002);
            }
        }
        pool_check(&w->pool, w->name);
        pool_drop(&w->pool);
    }
    return NULL;
}

int main(int count, char **arguments) {
    CHECK(count > 4, "usage: io SECONDS SEED FILE WAY...");
    seconds = atof(arguments[1]);
    uint64_t seed = strtoull(arguments[2], NULL, 0);
    file = arguments[3];
    int fd = open(file, O_RDONLY);
    CHECK(fd >= 0, "open %s: %s", file, strerror(errno));
    file_words = (uint64_t)lseek(fd, 0, SEEK_END) / 8;
    close(fd);
    struct compaction compaction;
    compaction_start(&compaction);
    int n = count - 4;
    struct way *all = calloc((size_t)n, sizeof *all);
    pthread_t *threads = calloc((size_t)n, sizeof *threads);
    for (int i = 0; i < n; i++) {
        all[i].name = arguments[4 + i];
        all[i].seed = mix(seed + (uint64_t)i);
        CHECK(!pthread_create(&threads[i], NULL, run, &all[i]), "pthread_create");
    }
    for (int i = 0; i < n; i++) pthread_join(threads[i], NULL);
    compaction_stop(&compaction);
    fprintf(stderr, "stress: operations=%lu errors=%lu refused=%lu\n", (unsigned long)operations,
            (unsigned long)errors, (unsigned long)refused);
    if (errors) return 1;
    puts("ok");
    return 0;
}

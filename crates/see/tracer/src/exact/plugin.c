/*
 * Inside an emulator: writes down every access of the program that it emulates.
 *
 * Loaded by QEMU's user-mode emulator (-plugin). The emulator calls us after each load and store and before
 * each block of instructions. Each thread counts in a table of its own, by page; when the clock enters another
 * cell (a stretch of time of the length asked for) the table goes to the recorder over a socket. With cells of
 * length 0 every access is a record of its own.
 *
 *   block   magic 4 | process 4 | thread 4 | records 4     then that many records; twin of exact.rs
 *   record  address 8 | instruction 8 | first 8 | last 8 | count 4 | kind 4
 *
 * Always true: no access is left out as long as the recorder listens; a recorder that has gone costs the
 * program nothing but its time. Times are bounds: an access is not before `first` and not after `last`, since
 * its block began before it and the emulator told of it after it.
 *
 * The emulator's headers are not needed: what is used of its interface stands here, unchanged in versions 1 and 2
 * (QEMU 4.2 to 8.1, 8.2 and later).
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/membarrier.h>
#include <pthread.h>
#include <sched.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>
#include <x86intrin.h>

#define VISIBLE __attribute__((visibility("default")))
typedef uint64_t plugin_id;
typedef uint32_t mem_info;
struct qemu_plugin_tb;
struct qemu_plugin_insn;
extern void qemu_plugin_register_vcpu_tb_trans_cb(plugin_id, void (*)(plugin_id, struct qemu_plugin_tb *));
extern void qemu_plugin_register_vcpu_tb_exec_cb(struct qemu_plugin_tb *, void (*)(unsigned, void *), int, void *);
extern void qemu_plugin_register_vcpu_mem_cb(struct qemu_plugin_insn *, void (*)(unsigned, mem_info, uint64_t, void *),
                                             int, int, void *);
extern void qemu_plugin_register_vcpu_syscall_cb(plugin_id, void (*)(plugin_id, unsigned, int64_t, uint64_t, uint64_t,
                                                 uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t));
extern void qemu_plugin_register_vcpu_syscall_ret_cb(plugin_id, void (*)(plugin_id, unsigned, int64_t, int64_t));
extern void qemu_plugin_register_vcpu_exit_cb(plugin_id, void (*)(plugin_id, unsigned));
extern void qemu_plugin_register_atexit_cb(plugin_id, void (*)(plugin_id, void *), void *);
extern size_t qemu_plugin_tb_n_insns(const struct qemu_plugin_tb *);
extern struct qemu_plugin_insn *qemu_plugin_tb_get_insn(const struct qemu_plugin_tb *, size_t);
extern uint64_t qemu_plugin_insn_vaddr(const struct qemu_plugin_insn *);
extern size_t qemu_plugin_insn_size(const struct qemu_plugin_insn *);
extern bool qemu_plugin_mem_is_store(mem_info);
extern unsigned qemu_plugin_mem_size_shift(mem_info);
/* Not of the interface, and used only where they are: the program's own ranges, and where its addresses begin. */
extern int walk_memory_regions(void *, int (*)(void *, uint64_t, uint64_t, unsigned long)) __attribute__((weak));
extern uintptr_t guest_base __attribute__((weak));

VISIBLE int qemu_plugin_version = API_VERSION;

#define PAGE 4096ull
#define MAGIC 0x31656770u
#define MAGIC_NAMES 0x326d6e70u

enum kind { READ, WRITE, EXECUTE, KINDS, RANGE = 16, HEAP, STACK, NOT_FOLLOWED, FUTEX };

struct record { uint64_t address, instruction, first, last; uint32_t count, kind; };
struct header { uint32_t magic, process, thread, count; };

/* What a thread did to a page in a cell, by kind. Page 0 is none: a slot is free. */
struct use { uint64_t page, address[KINDS], instruction[KINDS], first[KINDS], last[KINDS]; uint32_t count[KINDS]; };

#define OUT 400
struct thread {
    struct thread *next;
    volatile bool busy;
    uint32_t id;
    /* In ticks: when its block began, and when the next cell does. */
    uint64_t block_began, next_cell;
    /* The futex word that its call is about, and since when; 0: none. */
    uint64_t word, since;
    struct use *uses;
    uint32_t slots, used, waiting;
    struct record out[OUT];
};

static __thread struct thread *me __attribute__((tls_model("initial-exec")));
static struct thread *threads;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static int sock = -1;
static ino_t sock_inode;
static bool dead, follow_code;
static uint32_t process_id;
static char *path, *emulator, *options;
/* Length of a cell, ns of the monotonic clock, at whose multiples they begin. */
static uint64_t cell;
/* 1 until the first access, 0 until the program asks for it. */
static uint64_t break_start = 1;
/* Who empties all tables; the other threads count no more. */
static struct thread *volatile ender;
static __thread int64_t pending_call __attribute__((tls_model("initial-exec")));
static __thread uint64_t pending[6] __attribute__((tls_model("initial-exec")));

/* The time stamp counter against the monotonic clock: a line through the start and now, and by how many ns it may be
 * wrong at either. */
static uint64_t ticks0, nanos0, unsure0, unsure;
static double slope = 1;

static uint64_t monotonic(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1000000000ull + now.tv_nsec;
}

/* Counter and clock at one moment: the closest pair of several, for a thread may lose its processor between the two
 * readings. Returns how many ticks apart they may be. */
static uint64_t both(uint64_t *ticks, uint64_t *now)
{
    enum { TRIES = 50, CLOSE = 400 };
    uint64_t closest = UINT64_MAX;
    for (int i = 0; i < TRIES && closest > CLOSE; i++) {
        uint64_t before = __rdtsc();
        uint64_t clock = monotonic();
        uint64_t apart = __rdtsc() - before;
        if (apart >= closest)
            continue;
        closest = apart;
        *ticks = before + apart / 2;
        *now = clock;
    }
    return closest;
}

static void calibrate(void)
{
    uint64_t ticks, now;
    uint64_t apart = both(&ticks, &now);
    slope = (double)(now - nanos0) / (double)(ticks - ticks0);
    unsure = unsure0 + (uint64_t)((double)apart * slope / 2) + 1;
}

static uint64_t nanos(uint64_t ticks) { return nanos0 + (int64_t)((double)(int64_t)(ticks - ticks0) * slope); }
/* Bounds of the clock when the counter was at `ticks`. */
static uint64_t earliest(uint64_t ticks) { return nanos(ticks) - unsure; }
static uint64_t latest(uint64_t ticks) { return nanos(ticks) + unsure; }

/* To the recorder, under the lock. A program may close the descriptor and reuse its number: then nothing more is
 * said rather than something wrong. */
static void send_all(const void *data, size_t length)
{
    struct stat now;
    if (dead || fstat(sock, &now) || now.st_ino != sock_inode) {
        dead = true;
        return;
    }
    while (length) {
        ssize_t sent = send(sock, data, length, MSG_NOSIGNAL);
        if (sent < 0 && errno == EINTR)
            continue;
        if (sent <= 0) {
            dead = true;
            return;
        }
        data = (const char *)data + sent;
        length -= sent;
    }
}

static void reach(void)
{
    struct sockaddr_un to = { .sun_family = AF_UNIX };
    struct stat now;
    strncpy(to.sun_path, path, sizeof to.sun_path - 1);
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    int high = fd < 0 ? -1 : fcntl(fd, F_DUPFD_CLOEXEC, 900);
    if (high >= 0) {
        close(fd);
        fd = high;
    }
    sock = fd;
    process_id = getpid();
    dead = fd < 0 || connect(fd, (struct sockaddr *)&to, sizeof to) || fstat(fd, &now);
    if (!dead)
        sock_inode = now.st_ino;
}

static void put_out(struct thread *t)
{
    struct header header = { MAGIC, process_id, t->id, t->waiting };
    if (!t->waiting)
        return;
    /* With cells the tables do it. */
    if (!cell)
        calibrate();
    pthread_mutex_lock(&lock);
    send_all(&header, sizeof header);
    send_all(t->out, t->waiting * sizeof *t->out);
    pthread_mutex_unlock(&lock);
    t->waiting = 0;
}

static void put(struct thread *t, struct record record)
{
    t->out[t->waiting++] = record;
    if (t->waiting == OUT)
        put_out(t);
}

/* Empties the thread's table. */
static void empty(struct thread *t)
{
    calibrate();
    for (uint32_t i = 0; t->used && i < t->slots; i++) {
        struct use *use = &t->uses[i];
        if (!use->page)
            continue;
        for (int kind = 0; kind < KINDS; kind++)
            if (use->count[kind])
                put(t, (struct record){ use->address[kind], use->instruction[kind], earliest(use->first[kind]),
                                        latest(use->last[kind]), use->count[kind], kind });
        memset(use, 0, sizeof *use);
        t->used--;
    }
}

static void flush(struct thread *t)
{
    empty(t);
    put_out(t);
}

static struct use *slot(struct thread *t, uint64_t page)
{
    uint32_t at = (page * 0x9E3779B97F4A7C15ull) >> 32 & (t->slots - 1);
    while (t->uses[at].page && t->uses[at].page != page)
        at = (at + 1) & (t->slots - 1);
    return &t->uses[at];
}

/* The table has a free slot for every second one, so that finding one is short. */
static struct use *use_of(struct thread *t, uint64_t page)
{
    struct use *use = slot(t, page);
    if (use->page)
        return use;
    if (2 * t->used >= t->slots) {
        struct use *old = t->uses;
        uint32_t slots = t->slots;
        struct use *more = calloc(slots * 2, sizeof *more);
        if (!more) {
            flush(t);
        } else {
            t->uses = more;
            t->slots *= 2;
            for (uint32_t i = 0; i < slots; i++)
                if (old[i].page)
                    *slot(t, old[i].page) = old[i];
            free(old);
        }
        use = slot(t, page);
    }
    use->page = page;
    t->used++;
    return use;
}

static void note(struct thread *t, uint64_t address, uint64_t instruction, enum kind kind, uint64_t first, uint64_t now)
{
    if (!cell) {
        put(t, (struct record){ address, instruction, earliest(first), latest(now), 1, kind });
        return;
    }
    struct use *use = use_of(t, address / PAGE + 1);
    if (!use->count[kind]++) {
        use->address[kind] = address;
        use->instruction[kind] = instruction;
        use->first[kind] = first;
    } else if (!use->count[kind]) {
        use->count[kind] = UINT32_MAX;
    }
    use->last[kind] = now;
}

static void enter_cell(struct thread *t, uint64_t now)
{
    if (now < t->next_cell)
        return;
    empty(t);
    uint64_t next = (nanos(now) / cell + 1) * cell;
    t->next_cell = ticks0 + (uint64_t)((double)(next - nanos0) / slope);
}

/* Whether the thread may count; it says so itself, so that who empties its table waits for it. */
static bool enter(struct thread *t)
{
    t->busy = true;
    __asm__ volatile("" ::: "memory");
    if (!ender || ender == t)
        return true;
    t->busy = false;
    return false;
}

static void leave(struct thread *t)
{
    __asm__ volatile("" ::: "memory");
    t->busy = false;
}

static void say(enum kind kind, uint64_t address, uint64_t end, uint64_t first)
{
    if (me)
        put(me, (struct record){ address, end, first, monotonic(), 1, kind });
}

static int tell_range(void *unused, uint64_t start, uint64_t end, unsigned long flags)
{
    (void)unused;
    if (flags & 7)
        say(RANGE, start, end, flags);
    return 0;
}

/* What lies where: the emulator's whole address space with its names, and which of it is the program's. */
static void tell_layout(void)
{
    static char text[1 << 16];
    struct header header = { MAGIC_NAMES, process_id, me->id, 0 };
    int fd = open("/proc/self/maps", O_RDONLY | O_CLOEXEC);
    if (walk_memory_regions)
        walk_memory_regions(NULL, tell_range);
    put_out(me);
    pthread_mutex_lock(&lock);
    for (ssize_t got; fd >= 0 && (got = read(fd, text, sizeof text)) > 0;) {
        header.count = got;
        send_all(&header, sizeof header);
        send_all(text, got);
    }
    /* An empty piece ends the text. */
    header.count = 0;
    send_all(&header, sizeof header);
    pthread_mutex_unlock(&lock);
    if (fd >= 0)
        close(fd);
}

static struct thread *begin(void)
{
    struct thread *t = calloc(1, sizeof *t);
    if (!t || !(t->uses = calloc(t->slots = 256, sizeof *t->uses)))
        abort();
    t->id = syscall(SYS_gettid);
    t->block_began = __rdtsc();
    me = t;
    pthread_mutex_lock(&lock);
    bool first = !threads;
    t->next = threads;
    threads = t;
    pthread_mutex_unlock(&lock);
    if (first)
        tell_layout();
    return t;
}

static void on_memory(unsigned cpu, mem_info info, uint64_t address, void *instruction)
{
    struct thread *t = me ? me : begin();
    uint64_t now = __rdtsc();
    enum kind kind = qemu_plugin_mem_is_store(info) ? WRITE : READ;
    uint64_t last = address + (1ull << qemu_plugin_mem_size_shift(info)) - 1;
    (void)cpu;
    if (!enter(t))
        return;
    if (break_start == 1) {
        /* The first access of a program is to its stack. */
        break_start = 0;
        say(STACK, address, 0, 0);
    }
    if (cell)
        enter_cell(t, now);
    note(t, address, (uint64_t)instruction, kind, t->block_began, now);
    if (address / PAGE != last / PAGE)
        note(t, last & ~(PAGE - 1), (uint64_t)instruction, kind, t->block_began, now);
    leave(t);
}

static void on_block(unsigned cpu, void *data)
{
    struct thread *t = me ? me : begin();
    const uint64_t *range = data;
    (void)cpu;
    t->block_began = __rdtsc();
    if (follow_code && enter(t)) {
        if (cell)
            enter_cell(t, t->block_began);
        note(t, range[0], range[0], EXECUTE, t->block_began, t->block_began);
        if (range[0] / PAGE != range[1] / PAGE)
            note(t, range[1] & ~(PAGE - 1), range[0], EXECUTE, t->block_began, t->block_began);
        leave(t);
    }
}

static void on_translation(plugin_id id, struct qemu_plugin_tb *block)
{
    size_t count = qemu_plugin_tb_n_insns(block);
    uint64_t *range = malloc(2 * sizeof *range);
    (void)id;
    if (!count || !range)
        return;
    for (size_t i = 0; i < count; i++) {
        struct qemu_plugin_insn *insn = qemu_plugin_tb_get_insn(block, i);
        uint64_t at = qemu_plugin_insn_vaddr(insn);
        if (i == 0)
            range[0] = at;
        range[1] = at + qemu_plugin_insn_size(insn) - 1;
        /* No registers are read (0); loads and stores (3). */
        qemu_plugin_register_vcpu_mem_cb(insn, on_memory, 0, 3, (void *)at);
    }
    qemu_plugin_register_vcpu_tb_exec_cb(block, on_block, 0, range);
}

/* While a thread is in a call about a futex the kernel may take the word's page at any time, without a fault. */
static void tell_futex(struct thread *t)
{
    if (t->word)
        put(t, (struct record){ t->word, 0, t->since, monotonic(), 1, FUTEX });
    t->word = 0;
}

/* Empties the tables of all threads, of which the others stop counting first. */
static void flush_all(void)
{
    ender = me;
    syscall(SYS_membarrier, MEMBARRIER_CMD_PRIVATE_EXPEDITED, 0, 0);
    for (struct thread *t = threads; t; t = t->next) {
        while (t != me && t->busy)
            sched_yield();
        tell_futex(t);
        flush(t);
    }
}

/* Whether the emulator could run this file: one of x86-64, or a script, for whose interpreter this is asked. */
static bool emulable(const char *file, char *interpreter, size_t size, char **argument)
{
    char head[256] = { 0 };
    int fd = open(file, O_RDONLY | O_CLOEXEC);
    ssize_t got = fd < 0 ? -1 : read(fd, head, sizeof head - 1);
    if (fd >= 0)
        close(fd);
    *argument = NULL;
    interpreter[0] = 0;
    if (got > 20 && !memcmp(head, "\177ELF\2\1", 6))
        return head[18] == 62 && head[19] == 0;
    if (got < 3 || memcmp(head, "#!", 2))
        return false;
    head[strcspn(head, "\n")] = 0;
    char *name = head + 2 + strspn(head + 2, " \t"), *rest = name + strcspn(name, " \t");
    if (*rest) {
        *rest++ = 0;
        rest += strspn(rest, " \t");
        if (*rest)
            *argument = strdup(rest);
    }
    strncpy(interpreter, name, size - 1);
    return true;
}

/* A program that the program executes is emulated too: we execute the emulator on it in its stead. If that
 * cannot be, the call goes on and the new program runs by itself, which is told. */
static void execute(const char *file, char *const *words, char *const *environment)
{
    char interpreter[256] = { 0 }, *argument = NULL, **all;
    size_t count = 0, at = 0;
    char nested[2], *none;
    if (!strncmp(file, "/proc/self/exe", 14) ||
        !emulable(file, interpreter, sizeof interpreter, &argument) ||
        (interpreter[0] && (!emulable(interpreter, nested, sizeof nested, &none) || nested[0])))
        return;
    while (words && words[count])
        count++;
    all = calloc(count + 12, sizeof *all);
    if (!all)
        return;
    all[at++] = emulator;
    all[at++] = "-plugin";
    all[at++] = options;
    if (!interpreter[0]) {
        all[at++] = "-0";
        all[at++] = count ? words[0] : (char *)file;
        all[at++] = (char *)file;
    } else {
        all[at++] = interpreter;
        if (argument)
            all[at++] = argument;
        all[at++] = (char *)file;
    }
    for (size_t i = 1; i < count; i++)
        all[at++] = words[i];
    execve(emulator, all, environment);
    free(all);
}

static void on_call(plugin_id id, unsigned cpu, int64_t number, uint64_t a, uint64_t b, uint64_t c, uint64_t d,
                    uint64_t e, uint64_t f, uint64_t g, uint64_t h)
{
    (void)id, (void)cpu, (void)g, (void)h;
    if (!me)
        begin();
    pending_call = number;
    memcpy(pending, (uint64_t[]){ a, b, c, d, e, f }, sizeof pending);
    switch (number) {
    case 231: /* exit_group */
    case 60:  /* exit */
    case 62: case 200: case 234: /* kill, tkill, tgkill: perhaps of itself */
        if (number != 60)
            tell_layout();
        flush(me);
        if (number == 231)
            flush_all();
        break;
    case 56: case 57: case 58: case 435: /* clone, fork, vfork, clone3: a child begins with empty tables */
        flush(me);
        break;
    case 59: /* execve */
        tell_layout();
        flush_all();
        if (&guest_base && guest_base) {
            say(NOT_FOLLOWED, 0, 0, 0);
        } else if (!access((const char *)a, X_OK)) {
            execute((const char *)a, (char *const *)b, (char *const *)c);
            /* Still here: the program will run by itself. */
            say(NOT_FOLLOWED, 0, 0, 0);
        }
        put_out(me);
        break;
    case 322: /* execveat */
        tell_layout();
        say(NOT_FOLLOWED, 0, 0, 0);
        flush_all();
        break;
    case 202: /* futex */
        me->word = a;
        me->since = monotonic();
        flush(me);
        break;
    /* What may wait for long: the polls and selects, sleeps, waits, reads, accept, receive. */
    case 7: case 271: case 23: case 270: case 232: case 281: case 35: case 230: case 61: case 247:
    case 34: case 128: case 130: case 0: case 43: case 288: case 45: case 47:
        flush(me);
        break;
    }
}

static void on_return(plugin_id id, unsigned cpu, int64_t number, int64_t result)
{
    (void)id, (void)cpu;
    if (!me || number != pending_call)
        return;
    tell_futex(me);
    /* The call failed after all. */
    if (number == 59 || number == 322)
        ender = NULL;
    if (number >= 56 && number <= 58 && result == 0 && process_id != (uint32_t)getpid()) {
        /* A child: of its parent's threads it has this one, and a descriptor that is the parent's. */
        pthread_mutex_init(&lock, NULL);
        close(sock);
        reach();
        me->id = syscall(SYS_gettid);
        me->next = NULL;
        threads = me;
        tell_layout();
    } else if (number == 9 && result > 0) { /* mmap */
        char link[64], name[4096];
        ssize_t length = 0;
        if ((int)pending[4] >= 0 && !(pending[3] & MAP_ANONYMOUS)) {
            snprintf(link, sizeof link, "/proc/self/fd/%d", (int)pending[4]);
            length = readlink(link, name, sizeof name - 1);
        }
        say(RANGE, result, result + ((pending[1] + PAGE - 1) & ~(PAGE - 1)), pending[2] & 7);
        if (length > 0) {
            char text[4300];
            struct header header = { MAGIC_NAMES, process_id, me->id, 0 };
            name[length] = 0;
            header.count = snprintf(text, sizeof text, "%lx-%lx %c%c%cp %08lx 00:00 1 %s\n", (long)result,
                                    (long)(result + ((pending[1] + PAGE - 1) & ~(PAGE - 1))),
                                    pending[2] & 1 ? 'r' : '-', pending[2] & 2 ? 'w' : '-', pending[2] & 4 ? 'x' : '-',
                                    (long)pending[5], name);
            put_out(me);
            pthread_mutex_lock(&lock);
            send_all(&header, sizeof header);
            send_all(text, header.count);
            header.count = 0;
            send_all(&header, sizeof header);
            pthread_mutex_unlock(&lock);
        }
    } else if (number == 25 && result > 0) { /* mremap */
        say(RANGE, result, result + ((pending[2] + PAGE - 1) & ~(PAGE - 1)), 3);
    } else if (number == 12 && result > 0) { /* brk: the first call asks where it is */
        if (!break_start)
            break_start = result;
        else if ((uint64_t)result > break_start)
            say(HEAP, break_start & ~(PAGE - 1), (result + PAGE - 1) & ~(PAGE - 1), 0);
    }
}

static void on_thread_end(plugin_id id, unsigned cpu)
{
    (void)id, (void)cpu;
    if (me)
        flush(me);
}

static void at_exit(plugin_id id, void *unused)
{
    (void)id, (void)unused;
    flush_all();
}

static const char *value(const char *argument, const char *name)
{
    size_t length = strlen(name);
    return !strncmp(argument, name, length) && argument[length] == '=' ? argument + length + 1 : NULL;
}

VISIBLE int qemu_plugin_install(plugin_id id, const void *info, int argc, char **argv)
{
    const char *text, *file = "";
    (void)info;
    for (int i = 0; i < argc; i++) {
        if ((text = value(argv[i], "socket")))
            path = strdup(text);
        else if ((text = value(argv[i], "cell")))
            cell = strtoull(text, NULL, 10);
        else if ((text = value(argv[i], "code")))
            follow_code = *text == '1';
        else if ((text = value(argv[i], "self")))
            file = text;
    }
    if (!path)
        return 1;
    if (asprintf(&options, "%s,self=%s,socket=%s,cell=%llu,code=%d", file, file, path, (unsigned long long)cell,
                 follow_code) < 0)
        return 1;
    emulator = realpath("/proc/self/exe", NULL);
    uint64_t apart = both(&ticks0, &nanos0);
    usleep(2000);
    calibrate();
    unsure0 = (uint64_t)((double)apart * slope / 2) + 1;
    unsure += unsure0;
    syscall(SYS_membarrier, MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED, 0, 0);
    reach();
    qemu_plugin_register_vcpu_tb_trans_cb(id, on_translation);
    qemu_plugin_register_vcpu_syscall_cb(id, on_call);
    qemu_plugin_register_vcpu_syscall_ret_cb(id, on_return);
    qemu_plugin_register_vcpu_exit_cb(id, on_thread_end);
    qemu_plugin_register_atexit_cb(id, at_exit, NULL);
    return 0;
}

/* Code that lives in a traced program, as two processes that share its memory.
 *
 *   injector   runs system calls for the tracer: a batch at a time, handed over by a futex
 *   mapper    answers the program's seccomp notifications: calls that change its mappings
 *
 * and as a function that threads of the program call (libpagemill_sites.so): plain mmap and munmap are then done
 * on the spot (`inside`), which spares them the way to the mapper and back.
 *
 * A private writable mapping is made a shared mapping of one sparse file in memory (`memory_fd`), each
 * at a fresh offset, so that a page table entry can be dropped at any time without losing data. Before a
 * page leaves the address space, the mapper writes down (`log`) that it was touched: the next scan could
 * not see it any more.
 *
 * Freestanding: no libc, no data section, no relocation. Linked at CODE (injected.ld), entered at fixed
 * offsets (entry.S below). Every structure here has its twin in injected.rs.
 */
#include <stddef.h>
#include <stdint.h>
#include <asm/stat.h>
#include <asm/statfs.h>
#include <asm/unistd.h>

typedef uint64_t u64;
typedef int64_t i64;
typedef uint32_t u32;
typedef int32_t i32;

#define CONTROL 0x550000010000ul
#define PAGE 4096ul
/* What munmap on the spot may leave in the file until the mapper is awake again. */
#define PUT_OFF (8ul << 20)
/* Room for a mapping to grow in place, in the file. */
#define STRIDE (1ul << 36)

#define RANGES 4096
#define COMMANDS 128
#define LOG 8192
#define SEGMENTS 1024
#define SCAN 512
#define HOLES 64
#define OWN_FDS 8
/* Twin of watched.rs. */
#define ARMED (256ul << 20)

struct region { u64 start, end, categories; };
struct command { i64 argument[7]; i64 result; };
struct range { u64 base, length; };
/* A part of the memory file that holds a part of a program's image: where, and of which file. */
struct segment { u64 at, length, inode, from; };
struct notification {
	u64 id; u32 pid, flags;
	i32 number; u32 architecture; u64 instruction; u64 argument[6];
};
struct response { u64 id; i64 value; i32 error; u32 flags; };

struct control {
	/* Injector. */
	u32 request, done, count, injector_ready;
	/* Mapper. */
	u32 mapper_ready, forward;
	i32 process, memory_fd, userfault_fd, pagemap_fd, maps_fd, listener_fd, wake_fd, own_fds;
	u32 device_major, device_minor;
	u64 inode, next_offset;
	u64 break_start, break_end, break_offset;
	u32 segment_count, log_tail, log_head, frozen;
	/* leave: the mapper is to end. apart: how many mappings the tracer leaves as they are. */
	u32 orphan, tracer, leave, apart;
	u64 untraced, handled;
	struct notification notification;
	struct response response;
	struct segment segments[SEGMENTS];
	struct region log[LOG];
	struct region scan[SCAN];
	struct command commands[COMMANDS];
	struct command list[COMMANDS];
	struct range ranges[RANGES];
	struct notification foreign;
	u32 lock, arm;
	/* Parts of the file that nobody maps any more, still to be punched. */
	u64 put_off_bytes;
	/* A mapping has lost its middle: what is left on either side is of one part of the file. */
	u64 split;
	struct holes { u64 count; struct range at[HOLES]; } put_off;
	/* An address in the stack that the program began with. */
	u64 stack;
};

_Static_assert(offsetof(struct control, notification) == 152, "injected.rs says so too");
_Static_assert(offsetof(struct control, log) == 33024, "injected.rs says so too");
_Static_assert(offsetof(struct control, commands) == 241920, "injected.rs says so too");
_Static_assert(sizeof(struct control) == 324984, "injected.rs says so too");

#define control ((struct control *)CONTROL)

enum { IDLE, ASKING, ANSWERED };
/* Without a tracer: its memory is private, over the file; or anonymous again, or over a file that holds nothing; or is
 * being made so, or whoever was at it has been killed. PARTING is written by who has the lock only. */
enum { KEPT = 1, GIVEN_BACK = 2, PARTING = 3 };

__asm__(
	".section .text.entry,\"ax\"\n"
	/* r15: where a thread of the program goes on, which was made to come here. */
	/* 0: clone; the child becomes what r12 says. */
	"	syscall\n"
	"	test %rax, %rax\n"
	"	jnz 1f\n"
	"	and $-16, %rsp\n"
	"	test %r12, %r12\n"
	"	jnz 2f\n"
	"	call injector\n"
	"	ud2\n"
	"2:	call mapper\n"
	"	ud2\n"
	"1:	jmp *%r15\n"
	/* 64: runs the list. */
	"	.balign 64\n"
	"	and $-16, %rsp\n"
	"	call run_list\n"
	"	jmp *%r15\n"
	/* 128: one system call. */
	"	.balign 64\n"
	"	syscall\n"
	"	jmp *%r15\n"
	/* 192: a thread of the program calls. */
	"	.balign 64\n"
	"	jmp inside\n"
	".text\n");

static i64 call_once(i64 number, i64 a, i64 b, i64 c, i64 d, i64 e, i64 f)
{
	register i64 r10 __asm__("r10") = d;
	register i64 r8 __asm__("r8") = e;
	register i64 r9 __asm__("r9") = f;
	i64 result;
	__asm__ volatile("syscall"
			 : "=a"(result)
			 : "a"(number), "D"(a), "S"(b), "d"(c), "r"(r10), "r"(r8), "r"(r9)
			 : "rcx", "r11", "memory");
	return result;
}

/* The mapper's timer (mapper) interrupts no call but those that wait. */
static i64 call(i64 number, i64 a, i64 b, i64 c, i64 d, i64 e, i64 f)
{
	i64 result;
	do
		result = call_once(number, a, b, c, d, e, f);
	while (result == -4 && number != __NR_futex);
	return result;
}

#define call3(n, a, b, c) call(n, (i64)(a), (i64)(b), (i64)(c), 0, 0, 0)

static u32 load(u32 *word) { return __atomic_load_n(word, __ATOMIC_ACQUIRE); }
static void store(u32 *word, u32 value) { __atomic_store_n(word, value, __ATOMIC_RELEASE); }
/* At most a second. */
static void wait(u32 *word, u32 value)
{
	i64 limit[2] = { 1, 0 };
	call(__NR_futex, (i64)word, 0, value, (i64)limit, 0, 0);
}
static void wake(u32 *word) { call(__NR_futex, (i64)word, 1, 1, 0, 0, 0); }
static u64 up(u64 bytes) { return (bytes + PAGE - 1) & ~(PAGE - 1); }
static int failed(i64 result) { return result < 0 && result > -4096; }

static void run(struct command *commands, u32 count);

__attribute__((used)) void run_list(void) { run(control->list, control->count); }

/* ---- what the mapper knows of mappings */

#define PROCMAP_QUERY 0xc0686611ul
#define COVERING_OR_NEXT 0x10
struct query {
	u64 size, flags, address;
	u64 start, end, vma_flags, page_size, offset, inode;
	u32 major, minor, name_size, build_id_size;
	u64 name, build_id;
};

/* The mapping at or after `address` of the process whose maps these are; 0 if there is none, negative if the kernel
 * cannot tell. Its name is put into `name`. */
static int find_in(i64 maps, u64 address, struct query *query, char *name, u32 name_size)
{
	*query = (struct query){ .size = sizeof *query, .flags = COVERING_OR_NEXT, .address = address,
				 .name_size = name_size, .name = (u64)name };
	i64 result = call3(__NR_ioctl, maps, PROCMAP_QUERY, query);
	if (result == -2)
		return 0;
	return failed(result) ? -1 : 1;
}

/* The same of the program. */
static int find(u64 address, struct query *query)
{
	return find_in(control->maps_fd, address, query, 0, 0);
}

static int ours(struct query *query)
{
	return query->inode == control->inode && query->major == control->device_major &&
	       query->minor == control->device_minor;
}

static u64 fresh(u64 length)
{
	u64 room = (length + STRIDE - 1) & ~(STRIDE - 1);
	return __atomic_fetch_add(&control->next_offset, room, __ATOMIC_RELAXED);
}

static void watch(u64 start, u64 length)
{
	struct { u64 start, length, mode, ioctls; } registration = { start, up(length), 2, 0 };
	struct { u64 start, length, mode; } protection = { start, up(length), 1 };
	if (!failed(call3(__NR_ioctl, control->userfault_fd, 0xc020aa00ul, &registration)) && control->arm &&
	    length <= ARMED && !load(&control->frozen))
		call3(__NR_ioctl, control->userfault_fd, 0xc018aa06ul, &protection);
}

#define ADVISE_LOCKED 24
static void zap(u64 start, u64 length)
{
	if (failed(call3(__NR_madvise, start, length, ADVISE_LOCKED)))
		call3(__NR_madvise, start, length, 4);
}

/* ---- asking the tracer */

static void let_go(int locked);

/* Whether the tracer lives. It locks a byte of the memory file for as long: its number would be another one in another
 * PID namespace. */
static int tracer_lives(void)
{
	struct { short type, whence; i64 start, length; i32 pid; } lock = { 1, 0, 0, 1, 0 };
	/* 36: F_OFD_GETLK; 2: F_UNLCK. */
	return load(&control->tracer) && !failed(call3(__NR_fcntl, control->memory_fd, 36, &lock)) && lock.type != 2;
}

/* Waits for the tracer to answer control->notification; `locked`: the lock is ours. 0 if there is no tracer any
 * more. */
static int ask(int locked)
{
	u64 one = 1;
	if (load(&control->orphan))
		return 0;
	store(&control->forward, ASKING);
	call3(__NR_write, control->wake_fd, &one, 8);
	u32 state;
	while ((state = load(&control->forward)) != ANSWERED) {
		wait(&control->forward, state);
		if (!tracer_lives()) {
			let_go(locked);
			return 0;
		}
	}
	store(&control->forward, IDLE);
	return 1;
}

/* ---- pages that leave */

struct scan_argument {
	u64 size, flags, start, end, walk_end, vec, vec_len, max_pages;
	u64 inverted, mask, any, returned;
};
#define PAGEMAP_SCAN 0xc0606610ul
#define PRESENT 8
#define FILE_PAGE 4
#define WRITTEN 2
#define WRITES_SEEN 1

/* Writes the touched pages of a range into the log; whether all of them are there. It may `wait` for room. */
static int note(u64 start, u64 end, int wait)
{
	if (load(&control->orphan))
		return 1;
	while (start < end) {
		struct scan_argument scan = {
			.size = sizeof scan, .start = start, .end = end,
			.vec = (u64)control->scan, .vec_len = SCAN,
			.mask = PRESENT, .returned = PRESENT | FILE_PAGE | WRITTEN | WRITES_SEEN,
		};
		i64 found = call3(__NR_ioctl, control->pagemap_fd, PAGEMAP_SCAN, &scan);
		if (failed(found))
			return 0;
		for (i64 i = 0; i < found; i++) {
			u32 tail = control->log_tail;
			if (tail - load(&control->log_head) == LOG) {
				if (!wait)
					return 0;
				control->notification.number = -1;
				if (!ask(1))
					return 0;
			}
			struct region *entry = &control->log[tail % LOG];
			*entry = control->scan[i];
			store(&control->log_tail, tail + 1);
		}
		if (found < SCAN)
			return 1;
		start = scan.walk_end;
	}
	return 1;
}

static void punch(u64 offset, u64 length)
{
	/* While a forked child still reads the file, its pages stay as they are. PUNCH_HOLE | KEEP_SIZE */
	if (!load(&control->frozen))
		call(__NR_fallocate, control->memory_fd, 3, (i64)offset, (i64)length, 0, 0);
}

/* Notes what was touched in a range that is about to go, and where in the file it is. The next address to
 * look at when the holes are full. */
static u64 leave(u64 start, u64 end, struct holes *holes)
{
	struct query query;
	u64 at = start;
	holes->count = 0;
	while (at < end && find(at, &query) > 0 && query.start < end) {
		u64 from = query.start > at ? query.start : at;
		u64 to = query.end < end ? query.end : end;
		if (ours(&query)) {
			if (holes->count == HOLES)
				return from;
			holes->at[holes->count].base = query.offset + (from - query.start);
			holes->at[holes->count].length = to - from;
			holes->count++;
			if (from > query.start && to < query.end)
				control->split = 1;
		}
		at = query.end;
	}
	return end;
}

static void punch_all(struct holes *holes)
{
	for (u32 i = 0; i < holes->count; i++)
		punch(holes->at[i].base, holes->at[i].length);
}

static u64 bytes_of(struct holes *holes)
{
	u64 bytes = 0;
	for (u32 i = 0; i < holes->count; i++)
		bytes += holes->at[i].length;
	return bytes;
}

static int room_to_put_off(struct holes *holes)
{
	return control->put_off.count + holes->count <= HOLES && control->put_off_bytes + bytes_of(holes) <= PUT_OFF;
}

static void put_off(struct holes *holes)
{
	for (u32 i = 0; i < holes->count; i++)
		control->put_off.at[control->put_off.count++] = holes->at[i];
	control->put_off_bytes += bytes_of(holes);
}

/* Before anything that may map such a part again: a mapping that grows in place. */
static void punch_put_off(void)
{
	punch_all(&control->put_off);
	control->put_off.count = control->put_off_bytes = 0;
}

/* One of mapper, injector, threads and tracer at a time: they share the log and the end of the heap. The word is that
 * of a robust futex: it holds the number of the injector or mapper that has it, and where that is killed the kernel
 * puts DIED there (remember_lock). A thread of the program ends with it only together with the program. */
enum { NOBODY, DIED = 0x40000000, TRACER = 0x3ffffffe, A_THREAD = 0x3fffffff };
static int take_as(u32 who)
{
	u32 held = load(&control->lock);
	return !(held & ~(u32)DIED) &&
	       __atomic_compare_exchange_n(&control->lock, &held, who, 0, __ATOMIC_ACQUIRE, __ATOMIC_RELAXED);
}
static int take(void) { return take_as((u32)call3(__NR_gettid, 0, 0, 0)); }
static void leave_off(void) { __atomic_store_n(&control->lock, NOBODY, __ATOMIC_RELEASE); }
/* The tracer died with it. */
static void take_from_the_dead(void)
{
	u32 tracer = TRACER;
	if (load(&control->lock) == TRACER && !tracer_lives())
		__atomic_compare_exchange_n(&control->lock, &tracer, NOBODY, 0, __ATOMIC_ACQUIRE, __ATOMIC_RELAXED);
}

/* Twin of struct robust_list_head. */
struct robust { struct robust *next; i64 distance; u32 *taken; };
/* Says whose end is to leave the lock as DIED: the caller's, an injector's or a mapper's. It lives as long as that. */
static void remember_lock(struct robust *robust)
{
	*robust = (struct robust){ robust, 0, &control->lock };
	call3(__NR_set_robust_list, robust, sizeof *robust, 0);
}

#include "calls.h"
#include "alone.h"
#include "elsewhere.h"

/* A notification of this process that another one's mapper received. */
static i64 foreign(int by_tracer)
{
	struct notification copy = control->foreign;
	i64 result = 0;
	if (!take())
		return BUSY;
	take_address_limit(1);
	int what = decide(&copy, &result, by_tracer);
	take_address_limit(0);
	if (what != FORWARD)
		respond(copy.id, result, what == GO_ON);
	leave_off();
	return what;
}

/* What the tracer wants done holds while threads stand still that it has stopped: not any more if it has died. */
static void run(struct command *commands, u32 count)
{
	for (u32 i = 0; i < count && (!load(&control->tracer) || tracer_lives()); i++) {
		i64 *a = commands[i].argument;
		commands[i].result = a[0] == DECIDE || a[0] == DECIDE_NOW
					     ? foreign(a[0] == DECIDE_NOW)
					     : call(a[0], a[1], a[2], a[3], a[4], a[5], a[6]);
	}
}

/* A plain mmap or munmap, by a thread of the program; whether it is done. If not, the thread makes the call as ever.
 * Nothing is punched here: a fork may be under way, whose child reads the file from now on, and only the mapper's
 * calls are ordered with forks. Signals wait, for a handler may map too. */
__attribute__((used)) int inside(i64 number, u64 *a, i64 *result)
{
	u64 all = ~0ul, before;
	int what = GO_ON;
	/* Whose tracer was killed before it started the injector has nobody who would give memory back. A forked
	 * child has our memory and none of its own yet. */
	if (!load(&control->injector_ready) || load(&control->orphan) ||
	    call3(__NR_getpid, 0, 0, 0) != control->process)
		return 0;
	u64 flags = a[3], special = MAP_FIXED | MAP_GROWSDOWN | MAP_HUGETLB;
	if (number == __NR_mmap && ((flags & 15) != MAP_PRIVATE || !(flags & MAP_ANONYMOUS) || flags & special))
		return 0;
	if (failed(call(__NR_rt_sigprocmask, 2, (i64)&all, (i64)&before, 8, 0, 0)))
		return 0;
	if (take_as(A_THREAD)) {
		if (!load(&control->orphan))
			what = number == __NR_mmap ? do_mmap(a, result, 0) : unmap_here(a, result);
		leave_off();
	}
	call(__NR_rt_sigprocmask, 2, (i64)&before, 0, 8, 0, 0);
	/* What fails may fail otherwise, or not, in the kernel's own words. */
	return what == DONE && !failed(*result);
}

static int traced(void)
{
	return !load(&control->orphan) && tracer_lives();
}

/* Now and then, injector and mapper: without a tracer they let the program go, and end with it. */
static void look_around(void)
{
	if (traced())
		return;
	if (has_ended()) {
		/* A child of it that nobody adopted has this page, too. Nobody makes anything private any more. */
		if (load(&control->orphan) != GIVEN_BACK)
			store(&control->orphan, KEPT);
		call3(__NR_exit_group, 0, 0, 0);
	}
	let_go(0);
}

__attribute__((used)) void injector(void)
{
	struct robust robust;
	u32 last = load(&control->request);
	remember_lock(&robust);
	store(&control->injector_ready, 1);
	wake(&control->injector_ready);
	for (;;) {
		u32 request;
		while ((request = load(&control->request)) == last) {
			wait(&control->request, last);
			/* The mapper may not be asked for long, may have been killed, or be none: in another PID namespace. */
			look_around();
		}
		last = request;
		run(control->commands, control->count);
		store(&control->done, request);
		wake(&control->done);
	}
}

#define SIGALRM 14
#define SA_RESTORER 0x04000000
void ticked(void);
void after_tick(void);
__asm__(
	"ticked: ret\n"
	"after_tick:\n"
	"	mov $15, %eax\n"
	"	syscall\n");

/* Each second, and when the tracer says so, the mapper comes back from its wait for a call. */
static void tick(void)
{
	struct { u64 handler, flags, restorer, mask; } action = { (u64)ticked, SA_RESTORER, (u64)after_tick, 0 };
	u64 alarm = 1ul << (SIGALRM - 1);
	i64 each[4] = { 1, 0, 1, 0 };
	call(__NR_rt_sigaction, SIGALRM, (i64)&action, 0, 8, 0, 0);
	call(__NR_rt_sigprocmask, 1, (i64)&alarm, 0, 8, 0, 0);
	call3(__NR_setitimer, 0, each, 0);
}

__attribute__((used)) void mapper(void)
{
	struct notification *notification = &control->notification;
	struct robust robust;
	remember_lock(&robust);
	tick();
	/* Hand over on the caller's processor. */
	call3(__NR_ioctl, control->listener_fd, 0x40082104ul, 1);
	store(&control->mapper_ready, 1);
	wake(&control->mapper_ready);
	for (;;) {
		u64 *words = (u64 *)notification;
		for (u32 i = 0; i < sizeof *notification / 8; i++)
			words[i] = 0;
		if (load(&control->leave))
			call3(__NR_exit_group, 0, 0, 0);
		if (failed(call_once(__NR_ioctl, control->listener_fd, 0xc0502100ul, (i64)notification, 0, 0, 0))) {
			look_around();
			continue;
		}
		struct notification copy = *notification;
		i64 result = 0;
		int what = FORWARD;
		/* Another process of the same filter is the tracer's to answer; and one that has executed a program
		 * has memory of its own: its mappings were made here, where it did not see them. */
		if (is_own(&copy) && same_memory() && take_at_last()) {
			take_address_limit(1);
			what = decide(&copy, &result, 0);
			if (what != FORWARD)
				respond(copy.id, result, what == GO_ON);
			leave_off();
		}
		control->handled++;
		if (what == FORWARD) {
			*notification = copy;
			if (!ask(0))
				answer_alone(&copy);
		}
	}
}

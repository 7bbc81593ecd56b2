/* Calls that change mappings, at their edges: what the kernel says, and what the memory holds afterwards. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#ifndef MADV_COLLAPSE
#define MADV_COLLAPSE 25
#endif

#define PAGE 4096ul
enum { R = PROT_READ, RW = PROT_READ | PROT_WRITE, ANON = MAP_PRIVATE | MAP_ANONYMOUS };

static sigjmp_buf back;
static volatile sig_atomic_t caught;
static void fault(int signal)
{
	caught = signal;
	siglongjmp(back, 1);
}

/* The byte there, or minus the signal that reading it gives. */
static int peek(volatile char *at)
{
	caught = 0;
	volatile int byte = 0;
	if (!sigsetjmp(back, 1))
		byte = *at & 255;
	return caught ? -caught : byte;
}

static int poke(volatile char *at, char byte)
{
	caught = 0;
	if (!sigsetjmp(back, 1))
		*at = byte;
	return -caught;
}

static void pages(const char *what, char *memory, int count)
{
	printf("%s:", what);
	for (int page = 0; page < count; page++)
		printf(" %d", peek(memory + page * PAGE));
	printf("\n");
	fflush(stdout);
}

static void say(const char *what, long result)
{
	printf("%s: %s\n", what, result == -1 ? strerrorname_np(errno) : "yes");
	fflush(stdout);
}

static void fill(char *memory, int count)
{
	for (int page = 0; page < count; page++)
		memory[page * PAGE] = 'a' + page;
}

static void in_child(const char *what, char *memory, int count)
{
	fflush(stdout);
	if (!fork()) {
		pages(what, memory, count);
		_exit(0);
	}
	wait(0);
}

int main(int argc, char **argv)
{
	if (argc < 2)
		return 9;
	signal(SIGSEGV, fault);
	signal(SIGBUS, fault);
	int file = open(argv[1], O_RDWR | O_CREAT | O_TRUNC, 0600);
	char page[PAGE];
	for (int at = 0; at < 4; at++) {
		memset(page, 'A' + at, sizeof page);
		if (write(file, page, at == 3 ? 100 : PAGE) < 0)
			return 8;
	}

	/* Behind a file's end, and behind the end that it gets. */
	char *p = mmap(0, 8 * PAGE, RW, MAP_PRIVATE, file, 0);
	pages("file", p, 8);
	printf("%d %d\n", poke(p + 5 * PAGE, 1), poke(p + PAGE, 'x'));
	if (ftruncate(file, PAGE))
		return 7;
	pages("cut", p, 8);
	in_child("cut, child", p, 8);
	if (ftruncate(file, 6 * PAGE) || pwrite(file, "Q", 1, 4 * PAGE) < 0)
		return 7;
	pages("longer", p, 8);
	say("protect", mprotect(p, 2 * PAGE, R));
	printf("%d\n", poke(p, 'n'));
	say("give access", mprotect(p, 2 * PAGE, RW));
	printf("%d\n", poke(p, 'n'));
	char *q = mremap(p, 8 * PAGE, 4 * PAGE, 0);
	say("shrink", (long)q);
	q = mremap(q, 4 * PAGE, 6 * PAGE, MREMAP_MAYMOVE);
	say("grow", (long)q);
	pages("grown", q, 6);
	char *r = mremap(q, 6 * PAGE, 6 * PAGE, MREMAP_MAYMOVE | MREMAP_DONTUNMAP, 0);
	say("leave", (long)r);
	pages("left", q, 6);
	pages("gone", r, 6);
	if (pwrite(file, "S", 1, 2 * PAGE) < 0)
		return 7;
	in_child("child", r, 6);
	pages("written to the file", q, 6);
	say("sync", msync(r, 6 * PAGE, MS_SYNC));
	unsigned char core[8];
	say("core", mincore(r, 6 * PAGE, core));
	munmap(q, 6 * PAGE);
	munmap(r, 6 * PAGE);
	pages("unmapped", r, 6);

	/* A read-only mapping of a file gets write access. */
	p = mmap(0, 4 * PAGE, R, MAP_PRIVATE, file, 0);
	pages("read only", p, 4);
	say("give access", mprotect(p + PAGE, 2 * PAGE, RW));
	printf("%d %d\n", poke(p + PAGE, 'w'), poke(p, 'w'));
	if (pwrite(file, "T", 1, 2 * PAGE) < 0)
		return 7;
	pages("seen", p, 4);
	say("dropped", madvise(p, 4 * PAGE, MADV_DONTNEED));
	pages("again", p, 4);
	say("over it", (long)mmap(p + PAGE, PAGE, RW, ANON | MAP_FIXED, -1, 0));
	pages("covered", p, 4);
	munmap(p, 4 * PAGE);
	int blind = open(argv[1], O_WRONLY);
	say("blind", (long)mmap(0, PAGE, RW, MAP_PRIVATE, blind, 0));
	say("odd", (long)mmap(0, PAGE, RW, MAP_PRIVATE, file, 100));
	say("no file", (long)mmap(0, PAGE, RW, MAP_PRIVATE, 99, 0));
	say("nothing", (long)mmap(0, 0, RW, ANON, -1, 0));
	say("no kind", (long)mmap(0, PAGE, RW, MAP_ANONYMOUS, -1, 0));

	/* Private memory. */
	p = mmap(0, 8 * PAGE, RW, ANON, -1, 0);
	fill(p, 8);
	q = mremap(p, 8 * PAGE, 8 * PAGE, MREMAP_MAYMOVE | MREMAP_DONTUNMAP, 0);
	say("leave", (long)q);
	pages("left", p, 8);
	pages("gone", q, 8);
	fill(p, 3);
	in_child("left, child", p, 8);
	in_child("gone, child", q, 8);
	say("leave and grow", (long)mremap(p, 8 * PAGE, 9 * PAGE, MREMAP_MAYMOVE | MREMAP_DONTUNMAP, 0));
	say("leave, not moved", (long)mremap(p, 8 * PAGE, 8 * PAGE, MREMAP_DONTUNMAP, 0));
	r = mmap(0, 16 * PAGE, PROT_NONE, ANON, -1, 0);
	say("leave, there", (long)mremap(q, 4 * PAGE, 4 * PAGE, MREMAP_MAYMOVE | MREMAP_FIXED | MREMAP_DONTUNMAP, r));
	pages("there", r, 8);
	pages("left", q, 8);
	say("twice", (long)mremap(q, 0, 4 * PAGE, MREMAP_MAYMOVE));
	say("odd", (long)mremap(q + 1, PAGE, PAGE, 0));
	say("to nothing", (long)mremap(q, PAGE, 0, 0));
	say("unmapped", (long)mremap((char *)0x10000, PAGE, PAGE, 0));
	say("overlap", (long)mremap(q, 4 * PAGE, 4 * PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, q + PAGE));
	munmap(p, 8 * PAGE);
	munmap(q, 8 * PAGE);
	munmap(r, 16 * PAGE);

	/* A part from the middle grows: to a place, into its old place, and with more than its own pages. */
	p = mmap(0, 16 * PAGE, RW, ANON, -1, 0);
	fill(p, 16);
	r = mmap(0, 32 * PAGE, RW, ANON, -1, 0);
	fill(r, 32);
	q = mremap(p + 4 * PAGE, 4 * PAGE, 8 * PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, r + 2 * PAGE);
	printf("grown there: %d\n", q == r + 2 * PAGE);
	pages("grown", r, 16);
	pages("gone", p, 16);
	in_child("grown, child", r, 16);
	say("overlap", (long)mremap(p + 8 * PAGE, 2 * PAGE, 4 * PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, p + 9 * PAGE));
	say("odd place", (long)mremap(p + 8 * PAGE, 2 * PAGE, 4 * PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, r + 1));
	say("may not move", (long)mremap(p + 8 * PAGE, 2 * PAGE, 4 * PAGE, MREMAP_FIXED, r));
	say("leave and grow", (long)mremap(p + 8 * PAGE, 2 * PAGE, 4 * PAGE, MREMAP_MAYMOVE | MREMAP_DONTUNMAP, 0));
	pages("the rest", p + 8 * PAGE, 8);
	munmap(p, 16 * PAGE);
	munmap(r, 32 * PAGE);

	/* What has lost its middle grows back into it, without moving, and is one mapping again. */
	p = mmap(0, 64 * PAGE, RW, ANON, -1, 0);
	fill(p, 16);
	munmap(p + 8 * PAGE, 56 * PAGE);
	r = mmap(p + 24 * PAGE, PAGE, RW, ANON | MAP_FIXED_NOREPLACE, -1, 0);
	munmap(p + 3 * PAGE, PAGE);
	say("grow into a hole", (long)(q = mremap(p, 3 * PAGE, 4 * PAGE, 0)));
	printf("%d\n", q == p);
	pages("closed", p, 8);
	q = mremap(p + 4 * PAGE, 4 * PAGE, 12 * PAGE, 0);
	printf("grown: %d\n", q == p + 4 * PAGE);
	pages("grown", p, 16);
	fill(p, 16);
	q = mremap(p + 4 * PAGE, 12 * PAGE, 14 * PAGE, 0);
	printf("grown again: %d\n", q == p + 4 * PAGE);
	say("into another", (long)mremap(p + 4 * PAGE, 14 * PAGE, 30 * PAGE, 0));
	say("from the middle", (long)mremap(p + 6 * PAGE, 4 * PAGE, 6 * PAGE, 0));
	in_child("grown, child", p, 18);
	q = mremap(p + 4 * PAGE, 14 * PAGE, 10 * PAGE, 0);
	printf("shrunk: %d\n", q == p + 4 * PAGE);
	pages("shrunk", p, 18);
	q = mremap(p + 4 * PAGE, 10 * PAGE, 40 * PAGE, MREMAP_MAYMOVE);
	pages("moved", q, 12);
	pages("gone", p, 16);
	munmap(q, 40 * PAGE);
	munmap(p, 32 * PAGE);

	/* Huge pages now. */
	size_t huge = 2ul << 20;
	p = mmap(0, 4 * huge, RW, ANON, -1, 0);
	q = (char *)(((unsigned long)p + huge - 1) & ~(huge - 1));
	memset(q, 5, huge);
	say("collapse", madvise(q, huge, MADV_COLLAPSE));
	say("collapse a part", madvise(q + PAGE, huge / 2, MADV_COLLAPSE));
	say("collapse with a rest", madvise(q, huge + PAGE, MADV_COLLAPSE));
	say("collapse odd", madvise(q + 1, huge, MADV_COLLAPSE));
	say("collapse what was never touched", madvise(q + huge, huge, MADV_COLLAPSE));
	printf("%d %d %d\n", peek(q), peek(q + huge - 1), peek(q + huge));
	munmap(p, 4 * huge);
	p = mmap(0, 6 * PAGE, PROT_NONE, ANON, -1, 0);
	mprotect(p + PAGE, 4 * PAGE, RW);
	p += PAGE;
	fill(p, 4);
	say("collapse a small one", madvise(p, 4 * PAGE, MADV_COLLAPSE));
	munmap(p - PAGE, 6 * PAGE);

	/* Growth without access, beside other memory and over the end of what was set aside for it. */
	p = mmap(0, 8 * PAGE, RW, ANON, -1, 0);
	fill(p, 8);
	mprotect(p, 4 * PAGE, R);
	say("grow without access", (long)(q = mremap(p, 4 * PAGE, 16 * PAGE, MREMAP_MAYMOVE)));
	pages("grown", q, 16);
	printf("%d\n", poke(q, 1));
	pages("beside", p + 4 * PAGE, 4);
	munmap(q, 16 * PAGE);
	munmap(p, 8 * PAGE);
	size_t large = 1ul << 36;
	p = mmap(0, large, RW, ANON | MAP_NORESERVE, -1, 0);
	r = mmap(0, PAGE, RW, ANON, -1, 0);
	p[0] = 'f', p[large - 1] = 'l';
	say("grow a large one", (long)(q = mremap(p, large, large + 16 * PAGE, MREMAP_MAYMOVE)));
	if (q != MAP_FAILED) {
		r = mmap(0, large, RW, ANON | MAP_NORESERVE, -1, 0);
		q[large] = 'm';
		printf("%d %d %d %d\n", q[0], q[large - 1], q[large], r[0]);
	}

	/* Many parts replaced by one. */
	p = mmap(0, 400 * PAGE, RW, ANON, -1, 0);
	for (int at = 0; at < 400; at += 2)
		mprotect(p + at * PAGE, PAGE, R);
	p[399 * PAGE] = 7;
	say("over many", (long)mmap(p, 400 * PAGE, RW, ANON | MAP_FIXED, -1, 0));
	printf("%d %d\n", peek(p), peek(p + 399 * PAGE));
	say("over many, of a file", (long)mmap(p, 400 * PAGE, RW, MAP_PRIVATE | MAP_FIXED, file, 0));
	pages("file", p, 8);
	say("lock", mlock(p, PAGE));
	say("drop locked", madvise(p, PAGE, MADV_DONTNEED));
	say("unlock", munlock(p, PAGE));
	say("drop with a gap", (munmap(p + PAGE, PAGE), madvise(p, 3 * PAGE, MADV_DONTNEED)));
	say("sync with a gap", msync(p, 3 * PAGE, MS_ASYNC));
	say("core with a gap", mincore(p, 3 * PAGE, core));
	say("protect with a gap", mprotect(p, 3 * PAGE, RW));
	say("lock with a gap", mlock(p, 3 * PAGE));
	say("unmap odd", munmap(p + 1, PAGE));
	say("unmap nothing", munmap(p, 0));
	say("unmap the gap", munmap(p + PAGE, PAGE));
	return 0;
}

/* Every advice on every kind of memory: what the kernel says, and what the memory holds afterwards. */
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

#define PAGES 6
#define BYTES (PAGES * 4096)

static const char *const KINDS[] = { "private anonymous", "shared anonymous", "private file", "shared file",
				     "private file, read only", "private /dev/zero", "heap", "data" };
static const struct { int advice; const char *name; int contents; } ADVICE[] = {
	{ 0, "NORMAL", 1 }, { 1, "RANDOM", 1 }, { 2, "SEQUENTIAL", 1 }, { 3, "WILLNEED", 1 }, { 4, "DONTNEED", 1 },
	/* FREE may leave the bytes or not. */
	{ 8, "FREE", 0 }, { 9, "REMOVE", 1 }, { 10, "DONTFORK", 1 }, { 11, "DOFORK", 1 }, { 12, "MERGEABLE", 1 },
	{ 13, "UNMERGEABLE", 1 }, { 14, "HUGEPAGE", 1 }, { 15, "NOHUGEPAGE", 1 }, { 16, "DONTDUMP", 1 },
	{ 17, "DODUMP", 1 }, { 18, "WIPEONFORK", 1 }, { 19, "KEEPONFORK", 1 }, { 20, "COLD", 1 }, { 21, "PAGEOUT", 1 },
	{ 22, "POPULATE_READ", 1 }, { 23, "POPULATE_WRITE", 1 }, { 24, "DONTNEED_LOCKED", 1 }, { 102, "GUARD_INSTALL", 1 },
	{ 103, "GUARD_REMOVE", 1 }, { 77, "77", 1 },
};

static sigjmp_buf back;
static volatile sig_atomic_t caught;
static void fault(int signal)
{
	caught = signal;
	siglongjmp(back, 1);
}

static void show(volatile char *memory)
{
	for (int page = 0; page < PAGES; page++) {
		caught = 0;
		int byte = -1, last = -1;
		if (!sigsetjmp(back, 1)) {
			byte = memory[page * 4096];
			last = memory[page * 4096 + 4095];
		}
		if (caught)
			printf(" signal %d", caught);
		else
			printf(" %02x%02x", byte & 255, last & 255);
	}
}

static int zero;
static char image[2 * BYTES] __attribute__((aligned(4096))) = { 1, [4096] = 'i', [8192] = 'j', [12288] = 'k' };

static char *map(int kind, int file)
{
	int both = PROT_READ | PROT_WRITE;
	switch (kind) {
	case 0: return mmap(0, BYTES, both, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	case 1: return mmap(0, BYTES, both, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	case 2: return mmap(0, BYTES, both, MAP_PRIVATE, file, 0);
	case 3: return mmap(0, BYTES, both, MAP_SHARED, file, 0);
	case 4: return mmap(0, BYTES, PROT_READ, MAP_PRIVATE, file, 0);
	case 5: return zero = open("/dev/zero", O_RDWR), mmap(0, BYTES, both, MAP_PRIVATE, zero, 0);
	case 6: return (char *)(((unsigned long)sbrk(BYTES + 4096) + 4095) & ~4095ul);
	default: return image;
	}
}

/* A file of five pages and a half. */
static int file_of(const char *name)
{
	int file = open(name, O_RDWR | O_CREAT | O_TRUNC, 0600);
	char page[4096];
	for (int at = 0; at < PAGES; at++) {
		memset(page, 'A' + at, sizeof page);
		if (pwrite(file, page, at == PAGES - 1 ? 2048 : 4096, at * 4096) < 0)
			_exit(9);
	}
	return file;
}

static void one(int kind, int which, const char *name, int locked)
{
	int file = file_of(name);
	char *memory = map(kind, file);
	if (memory == MAP_FAILED)
		_exit(8);
	if (kind != 4)
		for (int page = 0; page < 4; page += 2)
			memory[page * 4096] = 'm' + page;
	if (locked)
		mlock(memory, BYTES);
	printf("%s, %s%s:", KINDS[kind], ADVICE[which].name, locked ? ", locked" : "");
	int done = madvise(memory, 3 * 4096, ADVICE[which].advice);
	printf(" %s;", done ? strerrorname_np(errno) : "yes");
	if (ADVICE[which].contents)
		show(memory);
	/* Later writes to the file show where the program has no copy. */
	if (pwrite(file, "zz", 2, 4096) < 0 || pwrite(file, "yy", 2, 4 * 4096) < 0)
		_exit(7);
	printf(" |");
	if (ADVICE[which].contents)
		show(memory);
	fflush(stdout);
	/* What a child gets. */
	pid_t child = locked ? -1 : fork();
	if (!child) {
		printf(" | child");
		if (ADVICE[which].contents)
			show(memory);
		fflush(stdout);
		/* And what a child of the child gets. */
		if (kind == 0 && ADVICE[which].contents && !fork()) {
			show(memory);
			fflush(stdout);
			_exit(0);
		}
		wait(0);
		_exit(0);
	}
	if (child > 0)
		waitpid(child, 0, 0);
	if (ADVICE[which].advice == 102) {
		printf(" | after");
		show(memory);
		printf(" %d", madvise(memory, 3 * 4096, 103));
		show(memory);
	}
	/* The advice does not outlive its memory. */
	int of_fork = ADVICE[which].advice == 10 || ADVICE[which].advice == 18 || ADVICE[which].advice == 102;
	if (kind < 6 && !of_fork) {
		munmap(memory, BYTES);
	} else if (kind < 6) {
		munmap(memory, BYTES);
		char *next = mmap(memory, BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
		next[0] = 'n';
		fflush(stdout);
		child = fork();
		if (!child) {
			printf(" | next");
			show(next);
			fflush(stdout);
			_exit(0);
		}
		waitpid(child, 0, 0);
	}
	if (locked)
		munlock(memory, BYTES);
	close(file);
	if (kind == 5)
		close(zero);
	printf("\n");
	fflush(stdout);
}

int main(int argc, char **argv)
{
	if (argc < 2)
		return 9;
	signal(SIGSEGV, fault);
	signal(SIGBUS, fault);
	for (int kind = 0; kind < 8; kind++)
		for (unsigned which = 0; which < sizeof ADVICE / sizeof *ADVICE; which++)
			for (int locked = 0; locked < 2; locked++)
				/* Private memory of /dev/zero is taken for anonymous memory, but for these two. */
				if (kind != 5 || (ADVICE[which].advice != 9 && ADVICE[which].advice != 18))
					one(kind, which, argv[1], locked);
	return 0;
}

/* RLIMIT_DATA and RLIMIT_AS: refused at the same point, in whatever way memory is asked for. */
#define _GNU_SOURCE
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

enum { RW = PROT_READ | PROT_WRITE, ANON = MAP_PRIVATE | MAP_ANONYMOUS };

/* Asks in steps of `step` pages until it is refused. */
static void until(const char *what, int how, size_t step)
{
	size_t bytes = step * 4096, count = 0;
	char *grown = mmap(0, bytes, RW, ANON, -1, 0);
	for (; count < 100000; count++) {
		void *got = MAP_FAILED;
		if (how == 0)
			got = mmap(0, bytes, RW, ANON, -1, 0);
		else if (how == 1)
			got = sbrk((long)bytes);
		else if (how == 2)
			got = grown = mremap(grown, (count + 1) * bytes, (count + 2) * bytes, MREMAP_MAYMOVE);
		else if (how == 3) {
			char *none = mmap(0, bytes, PROT_NONE, ANON, -1, 0);
			if (none != MAP_FAILED && !mprotect(none, bytes, RW))
				got = none;
		} else if (how == 4)
			got = malloc(bytes);
		if (got == MAP_FAILED || !got)
			break;
		/* It is there. */
		if (how != 2)
			memset(got, 1, 1);
	}
	printf("%s, %zu pages: %zu, %s\n", what, step, count, strerrorname_np(errno));
	fflush(stdout);
}

int main(int argc, char **argv)
{
	static const char *const HOW[] = { "mmap", "brk", "mremap", "mprotect", "malloc" };
	static const size_t STEPS[] = { 1, 17, 256 };
	if (argc > 2) {
		/* In a program of its own: a limit from the start, or one that it sets. */
		int how = atoi(argv[1]), step = atoi(argv[2]);
		struct rlimit limit = { 3 << 20, RLIM_INFINITY };
		if (setrlimit(RLIMIT_DATA, &limit))
			return 9;
		until(HOW[how], how, STEPS[step]);
		return 0;
	}
	for (int how = 0; how < 5; how++)
		for (int step = 0; step < 3; step++) {
			char text[2][8];
			snprintf(text[0], 8, "%d", how);
			snprintf(text[1], 8, "%d", step);
			if (!fork()) {
				execl(argv[0], argv[0], text[0], text[1], (char *)0);
				_exit(1);
			}
			wait(0);
		}
	/* A limit that is lifted, and one on the address space. */
	struct rlimit limit = { 3 << 20, RLIM_INFINITY }, none = { RLIM_INFINITY, RLIM_INFINITY };
	setrlimit(RLIMIT_DATA, &limit);
	printf("%d ", mmap(0, 32 << 20, RW, ANON, -1, 0) == MAP_FAILED);
	printf("%d ", mmap(0, 32 << 20, PROT_READ, ANON, -1, 0) == MAP_FAILED);
	printf("%d ", mmap(0, 32 << 20, RW, MAP_SHARED | MAP_ANONYMOUS, -1, 0) == MAP_FAILED);
	setrlimit(RLIMIT_DATA, &none);
	printf("%d ", mmap(0, 32 << 20, RW, ANON, -1, 0) == MAP_FAILED);
	limit.rlim_cur = 1 << 30;
	setrlimit(RLIMIT_AS, &limit);
	printf("%d ", mmap(0, 1 << 30, RW, ANON, -1, 0) == MAP_FAILED);
	printf("%d ", mmap(0, 1 << 30, RW, MAP_SHARED | MAP_ANONYMOUS, -1, 0) == MAP_FAILED);
	setrlimit(RLIMIT_AS, &none);
	printf("%d\n", mmap(0, 1 << 30, RW, ANON, -1, 0) == MAP_FAILED);
	return 0;
}

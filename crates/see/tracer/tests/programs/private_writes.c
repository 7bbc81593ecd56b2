/* Writes each page of a private mapping of a file a moment after it was read, in two threads, and in the parent of a
 * child that lives meanwhile; nothing that was written may be lost. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define PAGES 256
static char *file, *memory;
static int wrong, descriptor;

static double now(void)
{
	struct timespec time;
	clock_gettime(CLOCK_MONOTONIC, &time);
	return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
}

static void *work(void *which)
{
	int first = which != 0;
	double end = now() + 1.5;
	for (int round = 1; now() < end; round++) {
		char value = (char)(round % 100 + 1);
		for (int page = first; page < PAGES; page += 2) {
			/* What was written is gone: the file's page is there, and becomes a copy by the next write. */
			madvise(file + page * 4096, 4096, MADV_DONTNEED);
			volatile char *at = file + page * 4096, *other = memory + page * 4096;
			wrong += *at != 'f';
			char before = *other;
			*at = value;
			*other = value;
			wrong += *at != value || *other != value || (round > 1 && before == value);
		}
		for (int page = first; page < PAGES; page += 2)
			wrong += file[page * 4096] != value || memory[page * 4096] != value;
	}
	return 0;
}

int main(int argc, char **argv)
{
	char page[4096];
	if (argc < 2)
		return 9;
	descriptor = open(argv[1], O_RDWR | O_CREAT | O_TRUNC, 0600);
	memset(page, 'f', sizeof page);
	for (int at = 0; at < PAGES; at++)
		if (write(descriptor, page, sizeof page) != sizeof page)
			return 8;
	int both = PROT_READ | PROT_WRITE;
	file = mmap(0, PAGES * 4096, both, MAP_PRIVATE, descriptor, 0);
	memory = mmap(0, PAGES * 4096, both, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	for (int forks = 0; forks < 2; forks++) {
		pthread_t threads[2];
		pid_t child = 0;
		/* It reads the memory file, so that its parent's memory is private. */
		if (forks && !(child = fork()))
			for (;;)
				pause();
		pthread_create(&threads[0], 0, work, 0);
		pthread_create(&threads[1], 0, work, file);
		pthread_join(threads[0], 0);
		pthread_join(threads[1], 0);
		if (child) {
			kill(child, SIGKILL);
			waitpid(child, 0, 0);
		}
	}
	printf("%d wrong at %p\n", wrong, (void *)file);
	return 0;
}

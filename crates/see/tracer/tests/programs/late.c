/* One thread cannot be stopped for a while, for it waits for a process that borrows its memory; meanwhile another one
 * forks, and the child ends. Then it works on. */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

static void *waits(void *unused)
{
	pid_t child = vfork();
	if (!child) {
		usleep(400000);
		_exit(0);
	}
	waitpid(child, 0, 0);
	return unused;
}

int main(void)
{
	enum { PAGES = 200 };
	pthread_t thread;
	char *block = mmap(0, PAGES * 4096, 3, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	for (int page = 0; page < PAGES; page++)
		block[page * 4096] = 1;
	pthread_create(&thread, 0, waits, 0);
	usleep(100000);
	pid_t child = fork();
	if (!child)
		_exit(0);
	waitpid(child, 0, 0);
	pthread_join(thread, 0);
	for (int round = 0; round < 250; round++) {
		block[round % PAGES * 4096]++;
		usleep(10000);
	}
	return 0;
}

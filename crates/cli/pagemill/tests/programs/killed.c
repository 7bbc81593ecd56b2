/* Forks, executes programs, starts and joins threads, maps and drops memory, for as many rounds as it is told; then
 * executes itself, which says what was wrong: a sum of these. */
#define _GNU_SOURCE
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

enum { PAGES = 400, PAGE = 4096 };
enum {
    FRESH = 1,
    KEPT = 2,
    FORK = 4,
    EXECUTE = 8,
    JOIN = 16,
    DROP = 32,
    MAP = 64,
    START = 128,
    SHELL = 256,
    ADVISE = 512,
};

static volatile int stop, wrong;

static char *map(int pages)
{
	return mmap(0, (size_t)pages * PAGE, 3, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
}

static void *maps(void *unused)
{
	while (!stop) {
		char *at = map(20);
		if (at == MAP_FAILED) {
			wrong |= MAP;
			continue;
		}
		for (int page = 0; page < 20; page++) {
			if (at[page * PAGE])
				wrong |= FRESH;
			at[page * PAGE] = 7;
		}
		munmap(at, 20 * PAGE);
		usleep(300);
	}
	return unused;
}

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static int turn;

static void *takes_turns(void *unused)
{
	pthread_mutex_lock(&lock);
	while (!stop) {
		while (turn != 1 && !stop)
			pthread_cond_wait(&changed, &lock);
		turn = 0;
		pthread_cond_signal(&changed);
	}
	pthread_mutex_unlock(&lock);
	return unused;
}

static void *short_work(void *microseconds)
{
	usleep((useconds_t)(long)microseconds);
	char *block = malloc(50000);
	memset(block, 1, 50000);
	free(block);
	return (void *)17;
}

static void expect(int what, pid_t child, int expected)
{
	int status = 0;
	if (child < 0 || waitpid(child, &status, 0) != child || status != expected << 8) {
		wrong |= what;
		fprintf(stderr, "%d: child %d, error %d, status %x\n", what, child, errno, status);
	}
}

static void do_round(char *block, int round)
{
	pthread_t thread;
	void *result = 0;
	pid_t child;
	switch (round % 4) {
	case 0:
		child = fork();
		if (!child) {
			memset(block, 99, PAGES * PAGE);
			usleep(2000);
			_exit(block[5 * PAGE] == 99 ? 6 : 5);
		}
		expect(FORK, child, 6);
		break;
	case 1:
		child = fork();
		if (!child) {
			execl("/proc/self/exe", "killed", "child", (char *)0);
			_exit(8);
		}
		expect(EXECUTE, child, 9);
		break;
	case 2:
		if (pthread_create(&thread, 0, short_work, (void *)(long)(round * 37 % 3000)))
			wrong |= START;
		pthread_join(thread, &result);
		if (result != (void *)17)
			wrong |= JOIN;
		break;
	default:
		if (madvise(block, PAGES * PAGE, MADV_DONTNEED))
			wrong |= ADVISE;
		for (int page = 0; page < PAGES; page++)
			if (block[page * PAGE])
				wrong |= DROP;
		memset(block, 0, PAGES * PAGE);
		if (round % 8 == 3 && system("exit 4") != 4 << 8)
			wrong |= SHELL;
	}
}

int main(int count, char **words)
{
	if (count > 1 && !strcmp(words[1], "child")) {
		char *block = malloc(300000);
		memset(block, 3, 300000);
		for (int at = 0; at < 300000; at++)
			if (block[at] != 3)
				return 1;
		free(block);
		return 9;
	}
	if (count > 2 && !strcmp(words[1], "last")) {
		char *block = malloc(300000);
		memset(block, 3, 300000);
		printf("wrong %s\n", words[2]);
		return 7;
	}
	if (count != 2)
		return 2;
	alarm(200);
	pthread_t mapper, other;
	pthread_create(&mapper, 0, maps, 0);
	pthread_create(&other, 0, takes_turns, 0);
	char *block = map(PAGES), mark = 0;
	for (int round = 0; round < atoi(words[1]); round++) {
		for (int page = 0; page < PAGES; page++) {
			if (block[page * PAGE] != mark)
				wrong |= KEPT;
			block[page * PAGE] = mark + 1;
		}
		mark++;
		do_round(block, round);
		if (round % 4 == 3)
			mark = 0;
		pthread_mutex_lock(&lock);
		turn = 1;
		pthread_cond_signal(&changed);
		while (turn == 1)
			pthread_cond_wait(&changed, &lock);
		pthread_mutex_unlock(&lock);
	}
	stop = 1;
	pthread_mutex_lock(&lock);
	turn = 1;
	pthread_cond_broadcast(&changed);
	pthread_mutex_unlock(&lock);
	pthread_join(mapper, 0);
	pthread_join(other, 0);
	char text[60];
	sprintf(text, "%d", wrong);
	execl("/proc/self/exe", "killed", "last", text, (char *)0);
	return 3;
}

/* A program with a child that reads its memory and one that has executed another program: drops pages and forks, as its
 * child does, once the file `words[1]` is there. Says what was wrong: a sum of these, and of those of its child times
 * 1000. */
#define _GNU_SOURCE
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

enum { PAGES = 50, PAGE = 4096, ROUNDS = 12 };
/* More than a child may have that is given memory of its own. */
enum { MUCH = 260 << 20 };
enum { ADVISE = 1, DROP = 2, FORK = 4, CHILD = 8, SHARED = 16, KEPT = 32 };

static char *block;
static volatile char mark;

static int drops(int round)
{
	int wrong = 0;
	memset(block, 1 + round, PAGES * PAGE);
	if (madvise(block + PAGE, (PAGES - 2) * PAGE, MADV_DONTNEED)) {
		fprintf(stderr, "%d: madvise: error %d\n", getpid(), errno);
		wrong |= ADVISE;
	}
	for (int page = 1; page < PAGES - 1; page++)
		for (int byte = 0; byte < PAGE; byte += 512)
			if (block[page * PAGE + byte])
				wrong |= DROP;
	if (block[5] != 1 + round || block[(PAGES - 1) * PAGE + 5] != 1 + round)
		wrong |= KEPT;
	return wrong;
}

static int forks(int round)
{
	int wrong = 0, status = 0;
	memset(block, 100, PAGES * PAGE);
	mark = 1;
	pid_t child = fork();
	if (!child) {
		usleep(2000);
		int right = mark == 1 && block[7 * PAGE] == 100;
		mark = 2;
		memset(block, 101, PAGES * PAGE);
		usleep(2000);
		_exit(right && block[7 * PAGE] == 101 ? 6 : 5);
	}
	usleep(1000);
	memset(block, 102 + round, PAGES * PAGE);
	mark = 3;
	if (child < 0 || waitpid(child, &status, 0) != child)
		wrong |= FORK;
	else if (status != 6 << 8)
		wrong |= CHILD;
	if (wrong)
		fprintf(stderr, "%d: fork: error %d, status %x\n", getpid(), errno, status);
	for (int page = 0; page < PAGES; page++)
		if (block[page * PAGE] != 102 + round || mark != 3)
			wrong |= SHARED;
	return wrong;
}

static int works(const char *go)
{
	int wrong = 0;
	while (access(go, F_OK))
		usleep(1000);
	for (int round = 0; round < ROUNDS; round++)
		wrong |= forks(round) | drops(round);
	return wrong;
}

int main(int count, char **words)
{
	int status;
	if (count > 1 && !strcmp(words[1], "idle")) {
		pause();
		return 0;
	}
	alarm(200);
	block = mmap(0, PAGES * PAGE, 3, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	char *much = mmap(0, MUCH, 3, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	for (long at = 0; at < MUCH; at += PAGE)
		much[at] = 1;
	memset(block, 9, PAGES * PAGE);
	pid_t other = fork();
	if (!other) {
		execl("/proc/self/exe", "parted", "idle", (char *)0);
		_exit(8);
	}
	pid_t child = fork();
	if (!child)
		_exit(works(words[1]));
	/* They are to have begun. */
	usleep(300000);
	fclose(fopen(words[2], "w"));
	int wrong = works(words[1]);
	waitpid(child, &status, 0);
	kill(other, SIGTERM);
	waitpid(other, 0, 0);
	printf("wrong %d\n", wrong + 1000 * (status >> 8) + 100000 * (status & 255));
	return 7;
}

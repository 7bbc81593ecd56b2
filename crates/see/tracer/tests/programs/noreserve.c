/* Forks with more memory reserved than there is: what one side writes the other does not see. */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

int main(void)
{
	size_t bytes = 1ul << 38;
	char *large = mmap(0, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	char *small = malloc(100);
	if (large == MAP_FAILED)
		return 9;
	for (size_t at = 0; at < bytes; at += 1ul << 33)
		large[at] = 'p';
	small[0] = 'p';
	for (int round = 0; round < 3; round++) {
		int pipes[2][2];
		if (pipe(pipes[0]) || pipe(pipes[1]))
			return 8;
		pid_t child = fork();
		char byte = 0, seen = large[1ul << 37];
		if (!child) {
			for (size_t at = 0; at < bytes; at += 1ul << 33)
				large[at] = 'c';
			small[0] = 'c';
			/* The parent writes now. */
			if (write(pipes[0][1], "x", 1) != 1 || read(pipes[1][0], &byte, 1) != 1)
				_exit(7);
			for (size_t at = 0; at < bytes; at += 1ul << 33)
				if (large[at] != 'c')
					_exit(6);
			_exit(small[0] == 'c' && seen == 'p' + round ? 5 : 4);
		}
		if (read(pipes[0][0], &byte, 1) != 1)
			return 7;
		int status, wrong = small[0] != 'p' + round;
		for (size_t at = 0; at < bytes; at += 1ul << 33)
			wrong += large[at]++ != 'p' + round;
		small[0]++;
		if (write(pipes[1][1], "x", 1) != 1)
			return 7;
		waitpid(child, &status, 0);
		printf("%d wrong, child %x\n", wrong, status);
	}
	/* More than half of the address space, and some of it left to the side. */
	char *most = mmap(0, 64ul << 40, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	printf("64 TiB: %s\n", most == MAP_FAILED ? "no" : "yes");
	if (most != MAP_FAILED) {
		most[63ul << 40] = 7;
		printf("%d %d\n", most[63ul << 40], most[62ul << 40]);
	}
	return 0;
}

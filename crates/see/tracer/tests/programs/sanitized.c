/* Built with -fsanitize=address, whose shadow of 16 TiB is reserved memory: what a child poisons its parent does not
 * see. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

/* Its search for leaks traces the program, which is traced. */
const char *__asan_default_options(void)
{
	return "detect_leaks=0";
}

int main(void)
{
	char *blocks[64];
	for (int at = 0; at < 64; at++)
		memset(blocks[at] = malloc(1000), 'p', 1000);
	for (int round = 0; round < 4; round++) {
		pid_t child = fork();
		if (!child) {
			for (int at = 0; at < 64; at++)
				free(blocks[at]);
			char *mine = malloc(1000);
			memset(mine, 'c', 1000);
			_exit(mine[999] == 'c' ? 5 : 6);
		}
		int status, wrong = 0;
		waitpid(child, &status, 0);
		for (int at = 0; at < 64; at++)
			for (int byte = 0; byte < 1000; byte++)
				wrong += blocks[at][byte] != 'p';
		printf("%d wrong, child %x\n", wrong, status);
	}
	for (int at = 0; at < 64; at++)
		free(blocks[at]);
	return 0;
}

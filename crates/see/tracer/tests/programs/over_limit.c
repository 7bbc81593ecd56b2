/* Lowers its limits below what it has, and forks: the kernel refuses all mappings of it from then on. */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

int main(int argc, char **argv)
{
	size_t bytes = 32 << 20;
	char *memory = malloc(bytes);
	struct rlimit limit = { 1 << 20, argc > 2 ? 1 << 20 : RLIM_INFINITY };
	memset(memory, 'p', bytes);
	if (setrlimit(RLIMIT_AS, &limit) || setrlimit(RLIMIT_DATA, &limit))
		return 9;
	/* No process may raise a hard limit without this capability. */
	if (argc > 2 && (setresgid(65534, 65534, 65534) || setresuid(65534, 65534, 65534)))
		return 8;
	pid_t child = fork();
	if (!child) {
		memset(memory, 'c', bytes);
		getrlimit(RLIMIT_AS, &limit);
		_exit(limit.rlim_cur == 1 << 20 ? 5 : 6);
	}
	int status, wrong = 0;
	waitpid(child, &status, 0);
	for (size_t at = 0; at < bytes; at++)
		wrong += memory[at] != 'p';
	printf("%d wrong, child %x\n", wrong, status);
	return 0;
}

// Threads wait for the locks of large blocks while the first one forks: forks_among_threads THREADS FORKS.
// A fork that had slept for a lock took the wake-up of one that slept, too, and did not pass it on.
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

enum { BLOCKS = 16, MOST = 16 };
static volatile int stop;

static void *work(void *unused)
{
	while (!stop) {
		char *blocks[BLOCKS];
		for (int i = 0; i < BLOCKS; i++) {
			blocks[i] = malloc(20000 + i * 3000);
			*blocks[i] = 1;
		}
		for (int i = 0; i < BLOCKS; i++)
			free(blocks[i]);
	}
	return unused;
}

int main(int count, char **words)
{
	if (count != 3)
		return 2;
	pthread_t threads[MOST];
	int many = atoi(words[1]), forks = atoi(words[2]);
	for (int i = 0; i < many && i < MOST; i++)
		pthread_create(&threads[i], 0, work, 0);
	for (int i = 0; i < forks; i++) {
		pid_t child = fork();
		if (!child)
			_exit(0);
		int status;
		if (child < 0 || waitpid(child, &status, 0) != child || status)
			return 1;
	}
	stop = 1;
	for (int i = 0; i < many && i < MOST; i++)
		pthread_join(threads[i], 0);
	printf("{\"forks\": %d}\n", forks);
	return 0;
}

// What the helper thread looks like from the program: confined, real-time where that is allowed, and without the
// program's descriptors.
#define _GNU_SOURCE
#include <dirent.h>
#include <fcntl.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

static int field(const char *task, const char *name, char *value) {
    char path[64], line[256];
    snprintf(path, sizeof path, "/proc/self/task/%s/status", task);
    FILE *f = fopen(path, "r");
    int found = 0;
    while (f && fgets(line, sizeof line, f))
        if (!strncmp(line, name, strlen(name))) found = sscanf(line + strlen(name), ": %63s", value);
    if (f) fclose(f);
    return found;
}

static int descriptors(void) {
    int n = 0;
    for (int fd = 0; fd < 256; fd++) n += fcntl(fd, F_GETFD) >= 0;
    return n;
}

// The policy that a thread of ours gets that asks to be real-time, by asking. Under a filter the helper does not ask.
static int policy_here(void) {
    char self[16], filter[64] = "";
    snprintf(self, sizeof self, "%d", (int)getpid());
    field(self, "Seccomp", filter);
    if (strcmp(filter, "0")) return SCHED_OTHER;
    struct sched_param least = {.sched_priority = 1}, none = {0};
    struct rlimit limit;
    if (getrlimit(RLIMIT_RTTIME, &limit)) return SCHED_OTHER;
    if (limit.rlim_cur != RLIM_INFINITY || limit.rlim_max != RLIM_INFINITY) return SCHED_OTHER;
    int policy = sched_setscheduler(0, SCHED_RR, &least) ? SCHED_OTHER : SCHED_RR;
    sched_setscheduler(0, SCHED_OTHER, &none);
    return policy;
}

int main(void) {
    int expected = policy_here(), policy = -1;
    int before = descriptors();
    char *volatile p[64];
    for (int i = 0; i < 64; i++) memset(p[i] = malloc(900 << 10), 1, 900 << 10);
    int helpers = 0, confined = 0;
    // The thread is there at once; its set-up takes a moment.
    for (int i = 0; i < 200 && !confined; i++) {
        usleep(10000);
        DIR *tasks = opendir("/proc/self/task");
        struct dirent *task;
        helpers = 0;
        while ((task = readdir(tasks))) {
            char name[64] = "", seccomp[64] = "", rights[64] = "", privileges[64] = "", user[64] = "";
            if (task->d_name[0] == '.' || !field(task->d_name, "Name", name) || strcmp(name, "pagemill")) continue;
            helpers++;
            field(task->d_name, "Seccomp", seccomp);
            field(task->d_name, "CapEff", rights);
            field(task->d_name, "NoNewPrivs", privileges);
            field(task->d_name, "Uid", user);
            // A filter of its own would keep the program from setting one for all its threads.
            policy = sched_getscheduler(atoi(task->d_name));
            char first[16], programs[64] = "";
            snprintf(first, sizeof first, "%d", (int)getpid());
            field(first, "Seccomp", programs);
            confined += !strcmp(rights, "0000000000000000") && !strcmp(privileges, "1") && atoi(user) != 0 &&
                        !strcmp(seccomp, programs);
        }
        closedir(tasks);
        if (!helpers && i > 20) break;
    }
    puts(helpers == 1 && confined ? "one helper, confined" : helpers ? "a helper, not confined" : "no helper");
    if (helpers) puts(policy == expected ? "as urgent as it may be" : "of another urgency");
    puts(descriptors() == before ? "descriptors kept" : "descriptors leaked");
    return 0;
}

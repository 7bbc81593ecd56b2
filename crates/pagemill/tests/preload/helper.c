// What the helper thread looks like from the program: confined, and without the program's descriptors.
#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
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

int main(void) {
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
    puts(descriptors() == before ? "descriptors kept" : "descriptors leaked");
    return 0;
}

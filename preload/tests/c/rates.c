/*
 * How many files a second processes make, look at and remove, each in a directory of its own:
 *
 *     cc -O2 -o rates preload/tests/c/rates.c
 *     pando region run DIR --library on -- ./rates 16 1250 DIR
 *
 * A third argument after the directory has each file get 100 bytes.
 */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static const char *dir;
static int writes;

static double now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + (double)time.tv_nsec * 1e-9;
}

static int make(const char *path)
{
    static const char contents[100];
    int fd = open(path, O_CREAT | O_EXCL | O_WRONLY, 0644);
    if (fd == -1)
        return -1;
    if (writes && write(fd, contents, sizeof contents) != (ssize_t)sizeof contents)
        return -1;
    return close(fd);
}

static int look(const char *path)
{
    struct stat found;
    return stat(path, &found);
}

/* Has each process do something with each of its files. */
static void phase(const char *name, int processes, int files, int (*act)(const char *))
{
    double begin = now();
    for (int process = 0; process < processes; process++) {
        if (fork() != 0)
            continue;
        for (int file = 0; file < files; file++) {
            char path[4096];
            snprintf(path, sizeof path, "%s/d%d/f%d", dir, process, file);
            if (act(path) != 0) {
                perror(path);
                _exit(1);
            }
        }
        _exit(0);
    }
    int status, failed = 0;
    while (wait(&status) > 0)
        failed |= status;
    if (failed)
        exit(1);
    printf("%s %.0f/s\n", name, processes * files / (now() - begin));
    fflush(stdout);
}

int main(int count, char **words)
{
    if (count < 4) {
        fprintf(stderr, "usage: rates PROCESSES FILES DIR [write]\n");
        return 2;
    }
    int processes = atoi(words[1]), files = atoi(words[2]);
    dir = words[3];
    writes = count > 4;
    for (int process = 0; process < processes; process++) {
        char path[4096];
        snprintf(path, sizeof path, "%s/d%d", dir, process);
        if (mkdir(path, 0777) != 0) {
            perror(path);
            return 1;
        }
    }
    phase("create", processes, files, make);
    phase("stat", processes, files, look);
    phase("unlink", processes, files, unlink);
    return 0;
}

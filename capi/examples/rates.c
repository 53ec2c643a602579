/* Measures creates and stats of one thread, one after the other, as rates.rs does from Rust.
 *
 * rates HOST:PORT TOKEN-FILE DIR FILES */

#define _POSIX_C_SOURCE 200809L

#include <pando.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

static void check(const char *what, int result)
{
    if (result >= 0)
        return;
    fprintf(stderr, "%s: %s (%s)\n", what, pando_strerror(result), pando_last_error());
    exit(EXIT_FAILURE);
}

static double now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + (double)time.tv_nsec / 1e9;
}

int main(int argc, char **argv)
{
    if (argc != 5) {
        fprintf(stderr, "usage: %s HOST:PORT TOKEN-FILE DIR FILES\n", argv[0]);
        return 2;
    }
    unsigned files = (unsigned)atoi(argv[4]);
    struct pando_fs *fs;
    struct pando_stat stat;
    char path[512];

    check("pando_connect", pando_connect(argv[1], argv[2], NULL, &fs));
    check("pando_mkdirs", pando_mkdirs(fs, argv[3], 0755));
    double start = now();
    for (unsigned i = 0; i < files; i++) {
        snprintf(path, sizeof path, "%s/%u", argv[3], i);
        check("pando_create", pando_create(fs, path, 0644));
    }
    double created = now();
    for (unsigned i = 0; i < files; i++) {
        snprintf(path, sizeof path, "%s/%u", argv[3], i);
        check("pando_stat", pando_stat(fs, path, &stat));
    }
    double end = now();
    printf("C     %8.0f creates/s %8.0f stats/s\n", files / (created - start),
           files / (end - created));
    check("pando_disconnect", pando_disconnect(fs));
    return EXIT_SUCCESS;
}

/* Makes files and asks for the attributes of all of them, many at the same time, in one thread.
 *
 * batch_stat HOST:PORT TOKEN-FILE DIR FILES STATS */

#define _POSIX_C_SOURCE 200809L

#include <inttypes.h>
#include <pando.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

enum { IN_FLIGHT = 256, AT_ONCE = 1024 };

static struct pando_stat stats[AT_ONCE];
static struct pando_completion done[AT_ONCE];

static void check(const char *what, int64_t result)
{
    if (result >= 0)
        return;
    fprintf(stderr, "%s: %s (%s)\n", what, pando_strerror((int)result), pando_last_error());
    exit(EXIT_FAILURE);
}

static double now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + (double)time.tv_nsec / 1e9;
}

/* Waits until all that was submitted is done; every operation must have succeeded. */
static void finish(struct pando_batch *batch)
{
    int64_t count;
    while ((count = pando_batch_wait(batch, done, AT_ONCE, AT_ONCE, -1)) > 0) {
        for (int64_t i = 0; i < count; i++)
            check("operation", done[i].result);
    }
    check("pando_batch_wait", count);
}

int main(int argc, char **argv)
{
    if (argc != 6) {
        fprintf(stderr, "usage: %s HOST:PORT TOKEN-FILE DIR FILES STATS\n", argv[0]);
        return 2;
    }
    const char *dir = argv[3];
    unsigned files = (unsigned)atoi(argv[4]), wanted = (unsigned)atoi(argv[5]);
    struct pando_fs *fs;
    struct pando_batch *batch;
    char path[512];

    check("pando_connect", pando_connect(argv[1], argv[2], NULL, &fs));
    check("pando_mkdirs", pando_mkdirs(fs, dir, 0755));
    check("pando_batch_new", pando_batch_new(fs, IN_FLIGHT, &batch));

    double start = now();
    for (unsigned i = 0; i < files; i++) {
        snprintf(path, sizeof path, "%s/%u", dir, i);
        check("pando_batch_create", pando_batch_create(batch, path, 0644, i));
    }
    check("pando_batch_submit", pando_batch_submit(batch));
    finish(batch);
    printf("%u creates: %.0f per second\n", files, files / (now() - start));

    /* Each of the places in `stats` has one operation under way; the next one of a place begins
     * when its completion was seen. */
    start = now();
    unsigned begun = 0, ended = 0;
    uint64_t inodes = 0;
    for (; begun < AT_ONCE && begun < wanted; begun++) {
        snprintf(path, sizeof path, "%s/%u", dir, begun % files);
        check("pando_batch_stat", pando_batch_stat(batch, path, &stats[begun], begun));
    }
    while (ended < wanted) {
        check("pando_batch_submit", pando_batch_submit(batch));
        int64_t count = pando_batch_wait(batch, done, AT_ONCE, 128, -1);
        check("pando_batch_wait", count);
        for (int64_t i = 0; i < count; i++) {
            uint64_t place = done[i].user_data;
            check("stat", done[i].result);
            inodes += stats[place].ino != 0;
            ended++;
            if (begun == wanted)
                continue;
            snprintf(path, sizeof path, "%s/%u", dir, begun++ % files);
            check("pando_batch_stat", pando_batch_stat(batch, path, &stats[place], place));
        }
    }
    printf("%" PRIu64 " stats: %.0f per second\n", inodes, wanted / (now() - start));

    check("pando_batch_free", pando_batch_free(batch));
    check("pando_disconnect", pando_disconnect(fs));
    return EXIT_SUCCESS;
}

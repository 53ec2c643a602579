/* Calls each function of batches, with errors, an event loop, and threads that share one.
 *
 * batches HOST:PORT TOKEN-FILE */

#define _GNU_SOURCE

#include "check.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <string.h>
#include <sys/stat.h>

static struct pando_fs *fs;
static struct pando_completion done[64];

/* Submits, waits for all, and expects the result of each by its number. */
static void all(struct pando_batch *batch, int count, const int64_t *wanted)
{
    IS(count, pando_batch_submit(batch));
    int seen = 0;
    while (seen < count) {
        int64_t some = pando_batch_wait(batch, done, 64, (size_t)(count - seen), -1);
        IS(1, some > 0);
        for (int64_t i = 0; i < some; i++)
            IS(wanted[done[i].user_data], done[i].result);
        seen += (int)some;
    }
    IS(0, pando_batch_wait(batch, done, 64, 1, -1));
    IS(0, pando_batch_pending(batch));
}

static void one_of_each(void)
{
    struct pando_batch *b;
    struct pando_stat st[2];
    struct pando_file *file[2];
    struct pando_timespec times[2] = { { 5, 0, 0 }, { 6, 0, 0 } };
    char buffer[3][8];

    IS(-EFAULT, pando_batch_new(fs, 0, NULL));
    IS(-EINVAL, pando_batch_new(fs, 1000000, &b));
    IS(0, pando_batch_new(fs, 0, &b));
    IS(0, pando_batch_submit(b));
    IS(-EFAULT, pando_batch_stat(b, NULL, st, 0));
    IS(-EFAULT, pando_batch_stat(b, "/", NULL, 0));
    IS(-EINVAL, pando_batch_wait(b, done, 0, 0, 0));
    IS(-EFAULT, pando_batch_wait(b, NULL, 1, 0, 0));
    IS(0, pando_batch_wait(b, done, 64, 1, 0));

    IS(0, pando_batch_mkdir(b, "/b", 0755, 0));
    all(b, 1, (int64_t[]){ 0 });
    IS(0, pando_batch_mkdir(b, "/b", 0755, 0));
    IS(0, pando_batch_create(b, "/b/f", 0644, 1));
    IS(0, pando_batch_symlink(b, "f", "/b/s", 2));
    IS(0, pando_batch_write_file(b, "/b/w", 0600, "written", 7, 3));
    IS(0, pando_batch_open(b, "/b/o", O_RDWR | O_CREAT, 0600, &file[0], 4));
    IS(0, pando_batch_open(b, "/none", O_RDWR, 0, &file[1], 5));
    all(b, 6, (int64_t[]){ -EEXIST, 0, 0, 7, 0, -ENOENT });
    IS(0, pando_batch_stat(b, "/b/s", &st[0], 0));
    IS(0, pando_batch_lstat(b, "/b/s", &st[1], 1));
    IS(0, pando_batch_chmod(b, "/b/w", 0400, 2));
    IS(0, pando_batch_link(b, "/b/f", "/b/l", 3));
    IS(0, pando_batch_setxattr(b, "/b", "user.a", "x", 1, 0, 4));
    IS(0, pando_batch_pwrite(b, file[0], "data", 4, 2, 5));
    IS(0, pando_batch_read_file(b, "/b/w", buffer[0], 8, 6));
    all(b, 7, (int64_t[]){ 0, 0, 0, 0, 0, 4, 7 });
    IS(S_IFREG, st[0].mode & S_IFMT);
    IS(S_IFLNK, st[1].mode & S_IFMT);
    IS(0, memcmp(buffer[0], "written", 7));
    IS(0, pando_batch_getxattr(b, "/b", "user.a", buffer[1], 8, 0));
    IS(0, pando_batch_pread(b, file[0], buffer[2], 8, 0, 1));
    IS(0, pando_batch_fsync(b, file[0], 2));
    IS(0, pando_batch_chown(b, "/b/s", 5, 6, PANDO_NOFOLLOW, 3));
    IS(0, pando_batch_utimens(b, "/b/f", times, 0, 4));
    IS(0, pando_batch_truncate(b, "/b/f", 100, 5));
    all(b, 6, (int64_t[]){ 1, 6, 0, 0, 0, 0 });
    IS('x', buffer[1][0]);
    IS(0, memcmp(buffer[2], "\0\0data", 6));
    IS(0, pando_batch_close(b, file[0], 0));
    IS(-EBADF, pando_batch_close(b, file[0], 0));
    IS(0, pando_batch_rename(b, "/b/l", "/b/m", 0, 1));
    IS(0, pando_batch_unlink(b, "/b/w", 2));
    IS(0, pando_batch_rmdir(b, "/b/f", 3));
    all(b, 4, (int64_t[]){ 0, 0, 0, -ENOTDIR });
    IS(0, pando_batch_free(b));
    IS(-EBADF, pando_batch_free(b));
    IS(-EBADF, pando_batch_submit(b));
    IS(-EFAULT, pando_batch_free(NULL));
}

/* The program waits in poll(2); a thread of the library does the work meanwhile. */
static void event_loop(void)
{
    enum { STATS = 500 };
    static struct pando_stat st[STATS];
    struct pando_batch *batch;
    int seen = 0;

    IS(0, pando_batch_new(fs, 16, &batch));
    struct pollfd event = { pando_batch_fd(batch), POLLIN, 0 };
    IS(1, event.fd >= 0);
    IS(event.fd, pando_batch_fd(batch));
    IS(0, poll(&event, 1, 0));
    for (int round = 0; round < 2; round++) {
        for (int i = 0; i < STATS; i++)
            IS(0, pando_batch_stat(batch, "/b", &st[i], (uint64_t)i));
        IS(STATS, pando_batch_submit(batch));
        for (seen = 0; seen < STATS;) {
            IS(1, poll(&event, 1, 10000));
            int64_t count = pando_batch_wait(batch, done, 64, 1, 0);
            for (int64_t i = 0; i < count; i++)
                IS(0, done[i].result);
            seen += (int)count;
        }
        IS(STATS, seen);
        IS(0, poll(&event, 1, 0));
    }
    IS(0, pando_batch_free(batch));
}

static void *waits(void *batch)
{
    struct pando_completion own[16];
    int64_t count, sum = 0;

    while ((count = pando_batch_wait(batch, own, 16, 16, -1)) > 0) {
        for (int64_t i = 0; i < count; i++)
            IS(0, own[i].result);
        sum += count;
    }
    return (void *)sum;
}

/* Each completion goes to one of the threads that wait. */
static void shared(void)
{
    enum { STATS = 4000 };
    static struct pando_stat st[STATS];
    struct pando_batch *batch;
    pthread_t threads[4];
    int64_t sum = 0;

    IS(0, pando_batch_new(fs, 64, &batch));
    for (int i = 0; i < STATS; i++)
        IS(0, pando_batch_stat(batch, "/b", &st[i], (uint64_t)i));
    IS(STATS, pando_batch_submit(batch));
    for (int i = 0; i < 4; i++)
        IS(0, pthread_create(&threads[i], NULL, waits, batch));
    for (int i = 0; i < 4; i++) {
        void *some;
        IS(0, pthread_join(threads[i], &some));
        sum += (int64_t)some;
    }
    IS(STATS, sum);
    IS(0, pando_batch_free(batch));
}

/* What is under way when a batch is freed has ended when that returns. */
static void freed_early(void)
{
    static struct pando_stat st[1000];
    struct pando_batch *batch;

    IS(0, pando_batch_new(fs, 8, &batch));
    for (int i = 0; i < 1000; i++)
        IS(0, pando_batch_stat(batch, "/b", &st[i], (uint64_t)i));
    IS(1000, pando_batch_submit(batch));
    IS(1, pando_batch_wait(batch, done, 1, 1, -1));
    IS(0, pando_batch_free(batch));
    IS(0, pando_batch_new(fs, 8, &batch));
    IS(0, pando_batch_stat(batch, "/b", &st[0], 0));
    IS(0, pando_batch_free(batch));
}

/* A program that only looks, and never waits, takes its operations further by looking. */
static void looked_at(void)
{
    static struct pando_stat st[1000];
    struct pando_batch *batch;
    int64_t seen = 0;

    IS(0, pando_batch_new(fs, 8, &batch));
    for (int i = 0; i < 1000; i++)
        IS(0, pando_batch_stat(batch, "/b", &st[i], (uint64_t)i));
    IS(1000, pando_batch_submit(batch));
    while (seen < 1000) {
        int64_t some = pando_batch_wait(batch, done, 64, 1, 0);
        IS(1, some >= 0);
        for (int64_t i = 0; i < some; i++)
            IS(0, done[i].result);
        seen += some;
    }
    IS(0, pando_batch_free(batch));
}

int main(int argc, char **argv)
{
    if (argc != 3)
        return 2;
    IS(0, pando_connect(argv[1], argv[2], NULL, &fs));
    one_of_each();
    event_loop();
    shared();
    freed_early();
    looked_at();
    IS(0, pando_disconnect(fs));
    puts("ok");
    return 0;
}

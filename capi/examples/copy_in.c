/* Copies a file into the file system, and back out again.
 *
 * copy_in HOST:PORT TOKEN-FILE LOCAL PATH LOCAL-COPY */

#include <fcntl.h>
#include <pando.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static char buffer[1 << 20];

static int failed(const char *what, int64_t error)
{
    fprintf(stderr, "%s: %s (%s)\n", what, pando_strerror((int)error), pando_last_error());
    return EXIT_FAILURE;
}

int main(int argc, char **argv)
{
    if (argc != 6) {
        fprintf(stderr, "usage: %s HOST:PORT TOKEN-FILE LOCAL PATH LOCAL-COPY\n", argv[0]);
        return 2;
    }
    const char *local = argv[3], *path = argv[4], *copy = argv[5];
    struct pando_fs *fs;
    struct pando_file *file;
    struct pando_stat stat;
    int64_t count = 0;
    size_t read;

    int error = pando_connect(argv[1], argv[2], NULL, &fs);
    if (error < 0)
        return failed("pando_connect", error);

    FILE *from = fopen(local, "rb");
    if (from == NULL) {
        perror(local);
        return EXIT_FAILURE;
    }
    error = pando_open(fs, path, O_WRONLY | O_CREAT | O_TRUNC, 0644, &file);
    if (error < 0)
        return failed(path, error);
    while ((read = fread(buffer, 1, sizeof buffer, from)) > 0) {
        count = pando_write(file, buffer, read);
        if (count < 0)
            return failed("pando_write", count);
    }
    fclose(from);
    /* Closing sends what was written, so its answer counts. */
    error = pando_close(file);
    if (error < 0)
        return failed("pando_close", error);

    FILE *to = fopen(copy, "wb");
    if (to == NULL) {
        perror(copy);
        return EXIT_FAILURE;
    }
    error = pando_open(fs, path, O_RDONLY, 0, &file);
    if (error < 0)
        return failed(path, error);
    while ((count = pando_read(file, buffer, sizeof buffer)) > 0)
        fwrite(buffer, 1, (size_t)count, to);
    if (count < 0)
        return failed("pando_read", count);
    error = pando_fstat(file, &stat);
    if (error < 0)
        return failed("pando_fstat", error);
    pando_close(file);
    if (fclose(to) != 0) {
        perror(copy);
        return EXIT_FAILURE;
    }
    printf("%s: %llu bytes, inode %llu\n", path, (unsigned long long)stat.size,
           (unsigned long long)stat.ino);

    error = pando_disconnect(fs);
    return error < 0 ? failed("pando_disconnect", error) : EXIT_SUCCESS;
}

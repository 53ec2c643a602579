/* Lists a directory with the attributes of its entries.
 *
 * list HOST:PORT TOKEN-FILE PATH */

#include <pando.h>
#include <stdio.h>
#include <stdlib.h>

static int failed(const char *what, int error)
{
    fprintf(stderr, "%s: %s\n", what, pando_strerror(error));
    return EXIT_FAILURE;
}

int main(int argc, char **argv)
{
    if (argc != 4) {
        fprintf(stderr, "usage: %s HOST:PORT TOKEN-FILE PATH\n", argv[0]);
        return 2;
    }
    struct pando_fs *fs;
    struct pando_dir *dir;
    struct pando_dirent entry;

    int error = pando_connect(argv[1], argv[2], NULL, &fs);
    if (error < 0)
        return failed("pando_connect", error);
    error = pando_opendir(fs, argv[3], &dir);
    if (error < 0)
        return failed(argv[3], error);
    while ((error = pando_readdir(dir, &entry)) > 0) {
        if (entry.has_stat)
            printf("%06o %10llu %s\n", (unsigned)entry.stat.mode,
                   (unsigned long long)entry.stat.size, entry.name);
        else
            printf("%06o          ? %s\n", (unsigned)entry.type, entry.name);
    }
    if (error < 0)
        return failed("pando_readdir", error);
    pando_closedir(dir);
    return pando_disconnect(fs) < 0 ? EXIT_FAILURE : EXIT_SUCCESS;
}

/* Calls each function that waits once at least, with its errors.
 *
 * functions HOST:PORT TOKEN-FILE */

#define _GNU_SOURCE

#include "check.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

static const char *address, *token;
static struct pando_fs *fs;

static void connecting(void)
{
    struct pando_fs *none = (struct pando_fs *)&fs;
    struct pando_options *options = pando_options_new();
    const uint32_t groups[] = { 100, 200 };

    IS(-EFAULT, pando_connect(address, token, NULL, NULL));
    IS(-EINVAL, pando_connect(NULL, token, NULL, &none));
    IS(1, none == NULL);
    IS(-EINVAL, pando_connect("nowhere", token, NULL, &none));
    IS(-ENOENT, pando_connect(address, "/nonexistent", NULL, &none));
    IS(1, strstr(pando_last_error(), "/nonexistent") != NULL);
    IS(-EACCES, pando_connect(address, "/dev/null", NULL, &none));

    IS(0, pando_options_set_user(options, 0, 0, groups, 2));
    IS(-EFAULT, pando_options_set_user(options, 0, 0, NULL, 2));
    IS(0, pando_options_set_umask(options, 027));
    IS(0, pando_options_set_timeout(options, 20000));
    IS(0, pando_options_set_name(options, "functions.c"));
    IS(-EINVAL, pando_options_set_name(options, "\xff"));
    IS(0, pando_options_set_path_cache(options, 1 << 20));
    IS(0, pando_options_set_read_cache(options, 1 << 20));
    IS(0, pando_options_set_write_buffer(options, 1 << 20));
    IS(-EINVAL, pando_options_set_write_buffer(options, 0));
    IS(0, pando_options_set_atime(options, PANDO_ATIME_NEVER));
    IS(-EINVAL, pando_options_set_atime(options, 7));
    IS(-EINVAL, pando_options_set_tls(options, 7, NULL));
    IS(0, pando_options_set_tls(options, PANDO_TLS_ALWAYS, NULL));
    IS(0, pando_connect(address, token, options, &none));
    IS(0, pando_create(none, "/encrypted", 0644));
    IS(0, pando_unlink(none, "/encrypted"));
    IS(0, pando_disconnect(none));
    IS(0, pando_options_set_tls(options, PANDO_TLS_ALWAYS, "/dev/null"));
    IS(-EACCES, pando_connect(address, token, options, &none));
    IS(0, pando_options_set_tls(options, PANDO_TLS_NEVER, NULL));
    IS(0, pando_options_set_connect_timeout(options, 100));
    /* Port 9 has nobody who answers. */
    IS(-ETIMEDOUT, pando_connect("127.0.0.1:9", token, options, &none));
    IS(0, pando_options_set_connect_timeout(options, 10000));
    IS(0, pando_connect(address, token, options, &fs));
    IS(027, pando_umask(fs, 022));
    pando_options_free(options);
    pando_options_free(NULL);
    IS(-EBADF, pando_options_set_umask(options, 0));
    IS(-EBADF, pando_connect(address, token, options, &none));
    IS(0, strcmp(pando_strerror(-ENOENT), "No such file or directory"));
    IS(0, strcmp(pando_strerror(EEXIST), "File exists"));
    IS(1, pando_version()[0] >= '0' && pando_version()[0] <= '9');
}

static void names(void)
{
    struct pando_stat st;
    struct pando_statfs space;
    char target[16];

    IS(0, pando_mkdir(fs, "/d", 0777));
    IS(-EEXIST, pando_mkdir(fs, "/d", 0777));
    IS(0, pando_stat(fs, "/d", &st));
    IS(S_IFDIR | 0755, st.mode);
    IS(-ENOENT, pando_mkdir(fs, "/none/d", 0777));
    IS(0, pando_mkdirs(fs, "/d/a/b/c", 0777));
    IS(0, pando_mkdirs(fs, "d/a/b/c", 0777));
    IS(-ENOTEMPTY, pando_rmdir(fs, "/d/a"));
    IS(0, pando_rmdir(fs, "/d/a/b/c"));

    IS(0, pando_create(fs, "/d/f", 0666));
    IS(-EEXIST, pando_create(fs, "/d/f", 0666));
    IS(-ENOTDIR, pando_create(fs, "/d/f/g", 0666));
    IS(-ENOTDIR, pando_rmdir(fs, "/d/f"));
    IS(-EISDIR, pando_unlink(fs, "/d/a"));
    IS(0, pando_mknod(fs, "/d/fifo", S_IFIFO | 0600, 0));
    IS(-EPERM, pando_mknod(fs, "/d/dir", S_IFDIR | 0600, 0));
    IS(0, pando_stat(fs, "/d/fifo", &st));
    IS(S_IFIFO | 0600, st.mode);

    IS(0, pando_link(fs, "/d/f", "/d/g"));
    IS(0, pando_stat(fs, "/d/g", &st));
    IS(2, st.nlink);
    IS(-EPERM, pando_link(fs, "/d/a", "/d/h"));
    IS(0, pando_symlink(fs, "f", "/d/s"));
    IS(0, pando_lstat(fs, "/d/s", &st));
    IS(S_IFLNK, st.mode & S_IFMT);
    IS(0, pando_stat(fs, "/d/s", &st));
    IS(S_IFREG, st.mode & S_IFMT);
    IS(1, pando_readlink(fs, "/d/s", target, sizeof target));
    IS(0, strcmp(target, "f"));
    IS(-ERANGE, pando_readlink(fs, "/d/s", target, 1));
    IS(-EINVAL, pando_readlink(fs, "/d/f", target, sizeof target));
    IS(0, pando_symlink(fs, "loop", "/d/loop"));
    IS(-ELOOP, pando_stat(fs, "/d/loop", &st));

    IS(0, pando_rename(fs, "/d/g", "/d/h", 0));
    IS(-EEXIST, pando_rename(fs, "/d/f", "/d/h", PANDO_RENAME_NOREPLACE));
    IS(0, pando_rename(fs, "/d/h", "/d/fifo", PANDO_RENAME_EXCHANGE));
    IS(0, pando_stat(fs, "/d/h", &st));
    IS(S_IFIFO | 0600, st.mode);
    IS(-EINVAL, pando_rename(fs, "/d/f", "/d/h", 77));
    IS(-ENOENT, pando_rename(fs, "/d/none", "/d/h", 0));
    IS(0, pando_unlink(fs, "/d/h"));
    IS(-ENOENT, pando_unlink(fs, "/d/h"));

    IS(0, pando_statfs(fs, &space));
    IS(1, space.bytes >= space.bytes_free && space.files > 0 && space.name_max == 255);

    IS(-EFAULT, pando_stat(fs, NULL, &st));
    IS(-EFAULT, pando_stat(fs, "/d", NULL));
    IS(-EFAULT, pando_stat(NULL, "/d", &st));
    IS(-EBADF, pando_stat((struct pando_fs *)&st, "/d", &st));
    IS(-ENOENT, pando_stat(fs, "", &st));
    memset(target, 'x', sizeof target);
    char name[300] = "";
    memset(name, 'n', 256);
    IS(-ENAMETOOLONG, pando_stat(fs, name, &st));
}

static void attributes(void)
{
    struct pando_stat st;
    struct pando_timespec times[2] = { { 1000, 5, 0 }, { 0, PANDO_UTIME_OMIT, 0 } };
    char buffer[64];

    IS(0, pando_chmod(fs, "/d/f", 0640));
    IS(0, pando_chown(fs, "/d/f", 7, PANDO_ID_SAME, 0));
    IS(0, pando_chown(fs, "/d/s", 9, 9, PANDO_NOFOLLOW));
    IS(-EINVAL, pando_chown(fs, "/d/s", 9, 9, 4));
    IS(0, pando_utimens(fs, "/d/f", times, 0));
    IS(0, pando_truncate(fs, "/d/f", 12345));
    IS(0, pando_stat(fs, "/d/f", &st));
    IS(S_IFREG | 0640, st.mode);
    IS(7, st.uid);
    IS(0, st.gid);
    IS(1000, st.atime.sec);
    IS(5, st.atime.nsec);
    IS(12345, st.size);
    IS(1, st.mtime.sec > 1000);
    times[0].nsec = 1000000000;
    IS(-EINVAL, pando_utimens(fs, "/d/f", times, 0));
    IS(0, pando_utimens(fs, "/d/f", NULL, PANDO_NOFOLLOW));
    IS(0, pando_lstat(fs, "/d/s", &st));
    IS(9, st.uid);

    IS(0, pando_setxattr(fs, "/d/f", "user.a", "one", 3, 0));
    IS(-EEXIST, pando_setxattr(fs, "/d/f", "user.a", "two", 3, PANDO_XATTR_CREATE));
    IS(-ENODATA, pando_setxattr(fs, "/d/f", "user.b", "two", 3, PANDO_XATTR_REPLACE));
    IS(3, pando_getxattr(fs, "/d/f", "user.a", NULL, 0));
    IS(-ERANGE, pando_getxattr(fs, "/d/f", "user.a", buffer, 2));
    IS(3, pando_getxattr(fs, "/d/f", "user.a", buffer, sizeof buffer));
    IS(0, memcmp(buffer, "one", 3));
    IS(7, pando_listxattr(fs, "/d/f", buffer, sizeof buffer));
    IS(0, memcmp(buffer, "user.a", 7));
    IS(0, pando_removexattr(fs, "/d/f", "user.a"));
    IS(-ENODATA, pando_removexattr(fs, "/d/f", "user.a"));
    IS(-ENODATA, pando_getxattr(fs, "/d/f", "user.a", NULL, 0));

    struct pando_fs *user;
    const uint32_t groups[] = { 50 };
    IS(0, pando_as_user(fs, 1000, 1000, groups, 1, &user));
    IS(-EACCES, pando_access(user, "/d/f", R_OK));
    IS(0, pando_access(user, "/d/f", F_OK));
    IS(0, pando_access(fs, "/d/f", R_OK | W_OK));
    IS(-ENOENT, pando_access(fs, "/d/none", F_OK));
    IS(-EACCES, pando_mkdir(user, "/d/mine", 0777));
    IS(0, pando_chown(fs, "/d/f", 0, 50, 0));
    IS(0, pando_access(user, "/d/f", R_OK));
    IS(-EACCES, pando_access(user, "/d/f", W_OK));
    IS(0, pando_disconnect(user));
    IS(-EBADF, pando_access(user, "/d/f", F_OK));
    IS(0, pando_access(fs, "/d/f", F_OK));
}

static void contents(void)
{
    struct pando_file *file, *other;
    struct pando_stat st;
    char buffer[64];

    IS(-ENOENT, pando_open(fs, "/d/new", O_RDWR, 0, &file));
    IS(1, file == NULL);
    IS(0, pando_open(fs, "/d/new", O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0666, &file));
    IS(-EEXIST, pando_open(fs, "/d/new", O_RDWR | O_CREAT | O_EXCL, 0666, &other));
    IS(-EISDIR, pando_open(fs, "/d", O_RDONLY, 0, &other));
    IS(-EINVAL, pando_open(fs, "/d", O_RDONLY | O_DIRECTORY, 0, &other));
    IS(-ELOOP, pando_open(fs, "/d/s", O_RDONLY | O_NOFOLLOW, 0, &other));
    IS(-ELOOP, pando_open(fs, "/d/s", O_RDWR | O_CREAT | O_NOFOLLOW, 0, &other));
    IS(5, pando_write(file, "hello", 5));
    IS(6, pando_write(file, " world", 6));
    IS(0, pando_lseek(file, 0, SEEK_SET));
    IS(5, pando_read(file, buffer, 5));
    IS(0, memcmp(buffer, "hello", 5));
    IS(6, pando_lseek(file, 1, SEEK_CUR));
    IS(5, pando_read(file, buffer, sizeof buffer));
    IS(0, memcmp(buffer, "world", 5));
    IS(0, pando_read(file, buffer, sizeof buffer));
    IS(11, pando_lseek(file, 0, SEEK_END));
    IS(-EINVAL, pando_lseek(file, -12, SEEK_END));
    IS(-EINVAL, pando_lseek(file, 0, 99));
    IS(5, pando_pwrite(file, "WORLD", 5, 6));
    IS(11, pando_pread(file, buffer, sizeof buffer, 0));
    IS(0, memcmp(buffer, "hello WORLD", 11));
    IS(-EINVAL, pando_pread(file, buffer, 1, -1));
    IS(-EFAULT, pando_pread(file, NULL, 1, 0));
    IS(0, pando_pread(file, NULL, 0, 0));
    IS(0, pando_fstat(file, &st));
    IS(11, st.size);
    IS(0, pando_ftruncate(file, 5));
    IS(0, pando_fchmod(file, 0600));
    IS(0, pando_fchown(file, 3, 4));
    IS(0, pando_futimens(file, NULL));
    IS(0, pando_fsetxattr(file, "user.x", "1", 1, 0));
    IS(1, pando_fgetxattr(file, "user.x", buffer, sizeof buffer));
    IS(7, pando_flistxattr(file, buffer, sizeof buffer));
    IS(0, pando_fremovexattr(file, "user.x"));
    IS(0, pando_fallocate(file, 0, 0, 1 << 20));
    IS(0, pando_fallocate(file, PANDO_FALLOC_PUNCH_HOLE | PANDO_FALLOC_KEEP_SIZE, 0, 2));
    IS(-EOPNOTSUPP, pando_fallocate(file, PANDO_FALLOC_PUNCH_HOLE, 0, 2));
    IS(3, pando_pread(file, buffer, 3, 0));
    IS(0, memcmp(buffer, "\0\0l", 3));
    IS(0, pando_flush(file));
    IS(0, pando_fsync(file));
    IS(0, pando_fdatasync(file));
    IS(-ENXIO, pando_lseek(file, 2 << 20, SEEK_DATA));
    IS(1, pando_lseek(file, 0, SEEK_HOLE) >= 0);

    IS(0, pando_open(fs, "/d/copy", O_WRONLY | O_CREAT | O_APPEND, 0666, &other));
    IS(-EBADF, pando_pread(other, buffer, 1, 0));
    IS(5, pando_copy_file_range(file, 0, other, 0, 5));
    IS(3, pando_pwrite(other, "end", 3, 0));
    IS(3, pando_write(other, "END", 3));
    IS(11, pando_lseek(other, 0, SEEK_CUR));
    IS(0, pando_close(other));
    IS(-EBADF, pando_close(other));
    IS(-EBADF, pando_write(other, "END", 3));
    IS(-EBADF, pando_fstat((struct pando_file *)fs, &st));
    IS(-EFAULT, pando_close(NULL));
    IS(0, pando_unlink(fs, "/d/new"));
    IS(0, pando_close(file));

    IS(0, pando_open(fs, "/d", O_TMPFILE | O_RDWR, 0600, &file));
    IS(4, pando_write(file, "temp", 4));
    IS(0, pando_flink(file, "/d/named"));
    IS(0, pando_close(file));
    IS(4, pando_read_file(fs, "/d/named", buffer, 4));
    IS(0, memcmp(buffer, "temp", 4));
    IS(-EFBIG, pando_read_file(fs, "/d/named", buffer, 3));
    IS(6, pando_write_file(fs, "/d/named", 0644, "longer", 6));
    IS(6, pando_read_file(fs, "/d/named", buffer, sizeof buffer));
    IS(0, pando_open(fs, "/d/named", O_WRONLY | O_TRUNC | O_SYNC, 0, &file));
    IS(1, pando_write(file, "s", 1));
    IS(0, pando_close(file));
    IS(0, pando_sync(fs));
    IS(0, pando_sync_dir(fs, "/d"));
    IS(-ENOTDIR, pando_sync_dir(fs, "/d/named"));
}

static void *unlocks(void *file)
{
    usleep(20000);
    IS(0, pando_flock(file, PANDO_LOCK_NONE, 0));
    return NULL;
}

static void locks(void)
{
    struct pando_file *one, *other;
    struct pando_lock lock = { 0, 0, 0, PANDO_LOCK_EXCLUSIVE };
    pthread_t thread;

    IS(0, pando_open(fs, "/d/f", O_RDWR, 0, &one));
    IS(0, pando_open(fs, "/d/f", O_RDWR, 0, &other));
    IS(0, pando_flock(one, PANDO_LOCK_EXCLUSIVE, 0));
    IS(-EAGAIN, pando_flock(other, PANDO_LOCK_SHARED, 0));
    IS(0, pthread_create(&thread, NULL, unlocks, one));
    IS(0, pando_flock(other, PANDO_LOCK_EXCLUSIVE, 1));
    IS(0, pthread_join(thread, NULL));
    IS(-EINVAL, pando_flock(other, 9, 1));

    IS(0, pando_lock_range(one, PANDO_LOCK_EXCLUSIVE, 10, 5, 0));
    IS(-EAGAIN, pando_lock_range(other, PANDO_LOCK_SHARED, 0, 0, 0));
    IS(0, pando_get_lock(other, &lock));
    IS(PANDO_LOCK_EXCLUSIVE, lock.mode);
    IS(10, lock.start);
    IS(5, lock.len);
    IS(0, pando_lock_range(one, PANDO_LOCK_NONE, 0, 0, 0));
    IS(0, pando_get_lock(other, &lock));
    IS(PANDO_LOCK_NONE, lock.mode);
    IS(0, pando_close(one));
    IS(0, pando_close(other));
}

enum { LISTED = 2500 };

static void listing(void)
{
    static unsigned char seen[LISTED];
    struct pando_dir *dir;
    struct pando_dirent entry;
    char path[64];
    int more, count = 0;

    IS(-ENOTDIR, pando_opendir(fs, "/d/f", &dir));
    IS(-ENOENT, pando_opendir(fs, "/none", &dir));
    IS(0, pando_mkdir(fs, "/many", 0755));
    for (int i = 0; i < LISTED; i++) {
        snprintf(path, sizeof path, "/many/%d", i);
        IS(0, pando_create(fs, path, 0644));
    }
    IS(0, pando_opendir(fs, "/many", &dir));
    while ((more = pando_readdir(dir, &entry)) > 0) {
        IS(S_IFREG, entry.type);
        IS(1, entry.has_stat);
        IS(S_IFREG | 0644, entry.stat.mode);
        IS(0, seen[atoi(entry.name)]++);
        count++;
    }
    IS(0, more);
    IS(LISTED, count);
    IS(0, pando_readdir(dir, &entry));
    IS(-EFAULT, pando_readdir(dir, NULL));
    IS(0, pando_closedir(dir));
    IS(-EBADF, pando_closedir(dir));
    IS(-EBADF, pando_readdir(dir, &entry));
}

static void *works(void *number)
{
    struct pando_file *file;
    struct pando_stat st;
    char path[64], buffer[64];

    for (int i = 0; i < 200; i++) {
        int length = snprintf(path, sizeof path, "/t/%s.%d", (const char *)number, i);
        IS(0, pando_open(fs, path, O_RDWR | O_CREAT, 0600, &file));
        IS(length, pando_write(file, path, (size_t)length));
        IS(0, pando_close(file));
        IS(length, pando_read_file(fs, path, buffer, sizeof buffer));
        IS(0, memcmp(buffer, path, (size_t)length));
        IS(0, pando_stat(fs, path, &st));
        IS(-ENOENT, pando_stat(fs, "/t/none", &st));
        IS(1, strlen(pando_last_error()) > 0);
        IS(0, pando_unlink(fs, path));
    }
    return NULL;
}

static void threads(void)
{
    static char *numbers[] = { "0", "1", "2", "3" };
    pthread_t all[4];

    IS(0, pando_mkdir(fs, "/t", 0755));
    for (int i = 0; i < 4; i++)
        IS(0, pthread_create(&all[i], NULL, works, numbers[i]));
    for (int i = 0; i < 4; i++)
        IS(0, pthread_join(all[i], NULL));
    IS(0, pando_rmdir(fs, "/t"));
}

static void forks(void)
{
    struct pando_stat st;
    struct pando_fs *own;
    int status;

    pid_t child = fork();
    if (child == 0) {
        IS(-EBADF, pando_stat(fs, "/d", &st));
        IS(-EBADF, pando_disconnect(fs));
        IS(0, pando_connect(address, token, NULL, &own));
        IS(0, pando_stat(own, "/d", &st));
        IS(0, pando_disconnect(own));
        _exit(0);
    }
    IS(child, waitpid(child, &status, 0));
    IS(0, status);
    IS(0, pando_stat(fs, "/d", &st));
}

int main(int argc, char **argv)
{
    struct pando_file *open;
    struct pando_stat st;

    if (argc != 3)
        return 2;
    address = argv[1];
    token = argv[2];
    connecting();
    names();
    attributes();
    contents();
    locks();
    listing();
    threads();
    forks();

    /* Idle for longer than the library waits before its own thread takes over, and again. */
    usleep(50000);
    IS(0, pando_stat(fs, "/d", &st));
    IS(0, pando_open(fs, "/d/f", O_RDONLY, 0, &open));
    IS(0, pando_disconnect(fs));
    IS(-EBADF, pando_stat(fs, "/d", &st));
    IS(-EBADF, pando_fstat(open, &st));
    IS(-EBADF, pando_close(open));
    IS(-EBADF, pando_disconnect(fs));
    IS(-EFAULT, pando_disconnect(NULL));
    puts("ok");
    return 0;
}

/*
 * Does what programs do with files, and tells what came of it, a line for each call.
 *
 * The test runs it in a plain directory, in a region by the mount alone, and in a region with the
 * library of programs: all three must tell the same. So nothing is told that may differ between
 * file systems: numbers of inodes and devices, times, blocks, and sizes of directories. Each step
 * is done twice: by paths from the root, and by relative ones.
 *
 *     library DIRECTORY [library [STEP]]
 *
 * With "library" it ends with 3 if a new file's descriptor is not a virtual one.
 */

#define _GNU_SOURCE
#include <aio.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <limits.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <spawn.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/select.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

extern char **environ;

/* Files above this size are large in a region. */
#define LARGE 4096
#define CREATE (O_CREAT | O_RDWR)

static const char *root;        /* the directory that this program was given */
static const char *step = "-";  /* what is told of */
static char place[1024];        /* the step's directory */
static int is_relative;
static char self[PATH_MAX];     /* this program */

/* ---- Helpers ---- */

__attribute__((format(printf, 1, 2))) static void say(const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    printf("%s: ", step);
    vprintf(format, arguments);
    printf("\n");
    va_end(arguments);
}

static const char *error_name(int error)
{
    const char *name = strerrorname_np(error);
    return name ? name : "?";
}

/* Tells what a call has returned. */
static long told(const char *what, long value)
{
    if (value == -1)
        say("%s: %s", what, error_name(errno));
    else
        say("%s = %ld", what, value);
    return value;
}

/* The same where the number is a descriptor's. */
static int opened(const char *what, int fd)
{
    if (fd == -1)
        say("%s: %s", what, error_name(errno));
    else
        say("%s: opened", what);
    return fd;
}

__attribute__((noreturn)) static void die(const char *what)
{
    fprintf(stderr, "%s: %s: %s\n", step, what, strerror(errno));
    exit(2);
}

/* The path of a name in the step's directory. */
static const char *at(const char *name)
{
    static __thread char paths[8][2048];
    static __thread unsigned next;
    char *path = paths[next++ % 8];
    if (is_relative)
        snprintf(path, sizeof paths[0], "%s", name);
    else
        snprintf(path, sizeof paths[0], "%s/%s", place, name);
    return path;
}

static int create(const char *name)
{
    int fd = open(at(name), CREATE | O_TRUNC, 0644);
    if (fd == -1)
        die(name);
    return fd;
}

/* Writes a text, or ends this program. */
static void put(int fd, const char *text)
{
    if (write(fd, text, strlen(text)) != (ssize_t)strlen(text))
        die("write");
}

static void make(const char *name, const char *text)
{
    int fd = create(name);
    put(fd, text);
    close(fd);
}

static void fill(char *to, size_t len, unsigned seed)
{
    for (size_t index = 0; index < len; index++) {
        seed = seed * 1103515245 + 12345;
        to[index] = (char)('a' + (seed >> 16) % 26);
    }
}

static unsigned hash(unsigned before, const char *bytes, size_t len)
{
    for (size_t index = 0; index < len; index++)
        before = (before ^ (unsigned char)bytes[index]) * 16777619U;
    return before;
}

/* A descriptor's contents, from the first byte. */
static void show(const char *what, int fd)
{
    static char bytes[1 << 16];
    off_t offset = 0;
    unsigned sum = 2166136261U;
    char head[25] = "";
    ssize_t got;
    while ((got = pread(fd, bytes, sizeof bytes, offset)) > 0) {
        if (offset == 0) {
            for (ssize_t index = 0; index < got && index < 24; index++) {
                head[index] = '.';
                if (bytes[index] >= ' ' && bytes[index] <= '~')
                    head[index] = bytes[index];
            }
        }
        sum = hash(sum, bytes, (size_t)got);
        offset += got;
    }
    if (got == -1)
        say("%s: pread: %s", what, error_name(errno));
    else
        say("%s: %ld bytes, %08x, \"%s\"", what, (long)offset, sum, head);
}

static void show_path(const char *name)
{
    int fd = open(at(name), O_RDONLY);
    if (fd == -1) {
        say("%s: %s", name, error_name(errno));
        return;
    }
    show(name, fd);
    close(fd);
}

/* The same by a stream, which calls the kernel by itself. */
static void show_stream(const char *name)
{
    static char bytes[1 << 16];
    FILE *stream = fopen(at(name), "r");
    if (!stream) {
        say("%s by stream: %s", name, error_name(errno));
        return;
    }
    size_t got = fread(bytes, 1, sizeof bytes, stream);
    fseek(stream, 0, SEEK_END);
    long end = ftell(stream);
    say("%s by stream: %zu bytes, %08x, end at %ld", name, got, hash(1, bytes, got), end);
    fclose(stream);
}

static const char *kind_name(mode_t mode)
{
    switch (mode & S_IFMT) {
    case S_IFREG: return "file";
    case S_IFDIR: return "directory";
    case S_IFLNK: return "link";
    default: return "other";
    }
}

static void show_stat(const char *what, int result, const struct stat *found)
{
    if (result == -1) {
        say("%s: %s", what, error_name(errno));
        return;
    }
    int is_dir = S_ISDIR(found->st_mode);
    say("%s: %s, mode %04o, nlink %ld, size %ld, mine %d%d", what, kind_name(found->st_mode),
        (unsigned)found->st_mode & 07777, is_dir ? 0L : (long)found->st_nlink,
        is_dir ? 0L : (long)found->st_size, found->st_uid == geteuid(),
        found->st_gid == getegid());
}

static void show_fstat(const char *what, int fd)
{
    struct stat found;
    show_stat(what, fstat(fd, &found), &found);
}

/* Attributes of a name, as the C library and as the kernel tell them. */
static void show_attributes(const char *name)
{
    struct stat found;
    char what[300];
    snprintf(what, sizeof what, "lstat %.80s", name);
    show_stat(what, lstat(at(name), &found), &found);
    snprintf(what, sizeof what, "kernel's stat %.80s", name);
    long result =
        syscall(SYS_newfstatat, AT_FDCWD, at(name), &found, (long)AT_SYMLINK_NOFOLLOW);
    show_stat(what, (int)result, &found);
}

static void ended(const char *what, pid_t child)
{
    int status;
    if (child == -1) {
        say("%s: %s", what, error_name(errno));
    } else if (waitpid(child, &status, 0) != child) {
        say("%s: waitpid: %s", what, error_name(errno));
    } else if (WIFEXITED(status)) {
        say("%s: exit %d", what, WEXITSTATUS(status));
    } else {
        say("%s: signal %d", what, WTERMSIG(status));
    }
}

static pid_t forked(void)
{
    fflush(stdout);
    pid_t child = fork();
    if (child == -1)
        die("fork");
    return child;
}

static int lowest(void)
{
    int fd = dup(0);
    close(fd);
    return fd;
}

/* Counts lines, and those that are not of one letter. */
static void count_lines(const char *name, int *lines, int *torn)
{
    static char bytes[1 << 20];
    int fd = open(at(name), O_RDONLY);
    size_t len = 0;
    ssize_t got;
    while ((got = read(fd, bytes + len, sizeof bytes - len)) > 0)
        len += (size_t)got;
    close(fd);
    *lines = *torn = 0;
    char first = 0;
    int is_torn = 0;
    for (size_t index = 0; index < len; index++) {
        if (bytes[index] == '\n') {
            *torn += is_torn || !first;
            ++*lines;
            first = 0;
            is_torn = 0;
        } else if (!first) {
            first = bytes[index];
        } else if (first != bytes[index]) {
            is_torn = 1;
        }
    }
    *torn += first != 0;
}

/* ---- One process: contents ---- */

static void create_twice(void)
{
    int low = lowest();
    int fd = opened("first", open(at("a"), CREATE | O_EXCL, 0640));
    say("the lowest number: %d", fd == low);
    show_fstat("new", fd);
    opened("second", open(at("a"), CREATE | O_EXCL, 0640));
    opened("without O_EXCL", low = open(at("a"), CREATE, 0600));
    close(low);
    close(fd);
    opened("after close", open(at("a"), CREATE | O_EXCL, 0640));
    told("mkdir", mkdir(at("d"), 0755));
    opened("at a directory", open(at("d"), CREATE | O_EXCL, 0640));
    told("symlink", symlink("nowhere", at("l")));
    opened("at a link", open(at("l"), CREATE | O_EXCL, 0640));
    fd = opened("through a link", open(at("l"), CREATE, 0640));
    put(fd, "text");
    close(fd);
    show_path("nowhere");
    told("creat", (fd = creat(at("c"), 0604)) == -1 ? -1 : 0);
    told("write", write(fd, "xy", 2));
    close(fd);
    show_attributes("a");
    show_attributes("c");
}

static void write_and_seek(void)
{
    char bytes[64] = "";
    int fd = create("a");
    told("write", write(fd, "0123456789", 10));
    told("write nothing", write(fd, "", 0));
    told("pread", pread(fd, bytes, 4, 3));
    say("\"%.4s\"", bytes);
    told("pread before", pread(fd, bytes, 4, -1));
    told("position", lseek(fd, 0, SEEK_CUR));
    told("end", lseek(fd, 0, SEEK_END));
    told("back", lseek(fd, -3, SEEK_CUR));
    told("read", read(fd, bytes, 64));
    say("\"%.3s\"", bytes);
    told("at the end", read(fd, bytes, 64));
    told("before the first", lseek(fd, -1, SEEK_SET));
    told("far back", lseek(fd, -100, SEEK_CUR));
    told("far back from the end", lseek(fd, -100, SEEK_END));
    told("bad whence", lseek(fd, 0, 99));
    told("position", lseek(fd, 0, SEEK_CUR));
    told("past the end", lseek(fd, 5, SEEK_END));
    told("read there", read(fd, bytes, 64));
    told("read nothing", read(fd, bytes, 0));
    told("write there", write(fd, "end", 3));
    told("pwrite", pwrite(fd, "AB", 2, 1));
    told("pwrite before", pwrite(fd, "AB", 2, -5));
    told("position", lseek(fd, 0, SEEK_CUR));
    told("data", lseek(fd, 0, SEEK_DATA));
    show_fstat("end", fd);
    show("contents", fd);
    told("far write", pwrite(fd, "far", 3, LARGE + 10));
    told("position", lseek(fd, 0, SEEK_CUR));
    show_fstat("far", fd);
    show("contents", fd);
    told("close", close(fd));
    show_path("a");
    show_stream("a");
}

static void cut(void)
{
    char bytes[16];
    int fd = create("a");
    put(fd, "0123456789");
    told("down", ftruncate(fd, 3));
    told("position", lseek(fd, 0, SEEK_CUR));
    show("down", fd);
    told("up", ftruncate(fd, 10));
    show("up", fd);
    told("large", ftruncate(fd, LARGE + 1000));
    show_fstat("large", fd);
    told("write at its end", pwrite(fd, "x", 1, LARGE + 999));
    show("large", fd);
    told("small again", ftruncate(fd, 5));
    show("small", fd);
    show_attributes("a");
    told("read", read(fd, bytes, 16));
    told("negative", ftruncate(fd, -1));
    told("none", ftruncate(fd, 0));
    told("write", write(fd, "z", 1));
    show("after a hole", fd);
    int reader = open(at("a"), O_RDONLY);
    told("by a reader", ftruncate(reader, 1));
    close(reader);
    close(fd);
    told("path down", truncate(at("a"), 2));
    show_path("a");
    told("path up", truncate(at("a"), LARGE * 2));
    show_path("a");
    show_stream("a");
    told("path small", truncate(at("a"), 7));
    show_attributes("a");
    show_stream("a");
    told("path negative", truncate(at("a"), -1));
    told("of a directory", truncate(at("."), 0));
    told("of none", truncate(at("none"), 0));
}

static void umasks(void)
{
    mode_t before = umask(0077);
    say("before %04o", (unsigned)before);
    close(open(at("a"), CREATE, 0666));
    told("mkdir", mkdir(at("d"), 0777));
    told("symlink", symlink("a", at("l")));
    say("before %04o", (unsigned)umask(0));
    close(open(at("b"), CREATE, 0777));
    told("mkdir", mkdir(at("e"), 01777));
    close(open(at("s"), CREATE, 04755));
    say("before %04o", (unsigned)umask(0027));
    pid_t child = forked();
    if (child == 0) {
        close(open(at("c"), CREATE, 0666));
        umask(0777);
        close(open(at("f"), CREATE, 0666));
        _exit(0);
    }
    ended("child", child);
    close(open(at("g"), CREATE, 0666));
    umask(before);
    const char *names[] = { "a", "d", "l", "b", "e", "s", "c", "f", "g" };
    for (size_t index = 0; index < sizeof names / sizeof *names; index++)
        show_attributes(names[index]);
}

static void append_two(void)
{
    int one = open(at("a"), CREATE | O_APPEND, 0644);
    int other = open(at("a"), O_WRONLY | O_APPEND);
    int third = open(at("a"), O_WRONLY);
    for (int round = 0; round < 3; round++) {
        told("one", write(one, "one ", 4));
        told("other", write(other, "other ", 6));
    }
    told("position of one", lseek(one, 0, SEEK_CUR));
    told("position of other", lseek(other, 0, SEEK_CUR));
    told("third", write(third, "THIRD", 5));
    told("to the first", lseek(one, 0, SEEK_SET));
    told("write", write(one, "last", 4));
    told("position of one", lseek(one, 0, SEEK_CUR));
    show("contents", one);
    told("pwrite", pwrite(one, "anywhere", 8, 2));
    told("position of one", lseek(one, 0, SEEK_CUR));
    show("contents", one);
    told("F_SETFL", fcntl(one, F_SETFL, 0));
    told("pwrite", pwrite(one, "HERE", 4, 2));
    show("contents", one);
    char bytes[LARGE];
    fill(bytes, sizeof bytes, 3);
    told("much", write(other, bytes, sizeof bytes));
    told("position of other", lseek(other, 0, SEEK_CUR));
    told("pwrite", pwrite(other, "anywhere", 8, 0));
    show("contents", one);
    close(third);
    close(other);
    close(one);
    show_path("a");
}

static void vectors(void)
{
    char first[4] = "", second[8] = "", many[20][2];
    struct iovec three[] = { { "abc", 3 }, { "", 0 }, { "defgh", 5 } };
    struct iovec two[] = { { first, 3 }, { second, 7 } };
    struct iovec twenty[20];
    volatile int bad = -1;
    int fd = create("a");
    told("writev", writev(fd, three, 3));
    told("position", lseek(fd, 0, SEEK_CUR));
    told("writev of none", writev(fd, three, 0));
    told("writev of nothing", writev(fd, three + 1, 1));
    told("writev of a bad number", writev(fd, three, bad));
    for (int index = 0; index < 20; index++) {
        many[index][0] = (char)('A' + index);
        twenty[index].iov_base = many[index];
        twenty[index].iov_len = 1;
    }
    told("writev of many", writev(fd, twenty, 20));
    told("lseek", lseek(fd, 1, SEEK_SET));
    told("readv", readv(fd, two, 2));
    say("\"%.3s\" \"%.7s\"", first, second);
    told("position", lseek(fd, 0, SEEK_CUR));
    told("pwritev", pwritev(fd, three, 3, 2));
    told("preadv", preadv(fd, two, 2, 0));
    say("\"%.3s\" \"%.7s\"", first, second);
    told("position", lseek(fd, 0, SEEK_CUR));
    show("contents", fd);
    close(fd);
    fd = open(at("b"), CREATE | O_APPEND, 0644);
    told("writev", writev(fd, three, 3));
    told("lseek", lseek(fd, 0, SEEK_SET));
    told("writev", writev(fd, three, 3));
    show("appended", fd);
    close(fd);
    static char large[3000];
    struct iovec pair[] = { { large, sizeof large }, { large, sizeof large } };
    fill(large, sizeof large, 9);
    fd = create("c");
    told("writev of much", writev(fd, pair, 2));
    told("position", lseek(fd, 0, SEEK_CUR));
    show("contents", fd);
    close(fd);
    show_stream("c");
}

static void truncated_anew(void)
{
    make("a", "some contents");
    int reader = open(at("a"), O_RDONLY);
    int fd = opened("O_TRUNC", open(at("a"), O_WRONLY | O_TRUNC));
    show("seen by a reader", reader);
    put(fd, "new");
    show("seen by a reader", reader);
    close(fd);
    static char bytes[3 * LARGE];
    fill(bytes, sizeof bytes, 5);
    fd = create("a");
    told("write", write(fd, bytes, sizeof bytes));
    close(fd);
    show("large", reader);
    show_attributes("a");
    fd = opened("O_TRUNC", open(at("a"), CREATE | O_TRUNC, 0600));
    show_attributes("a");
    put(fd, "small");
    show("small", reader);
    close(fd);
    close(reader);
    opened("O_TRUNC to read", fd = open(at("a"), O_RDONLY | O_TRUNC));
    close(fd);
    show_attributes("a");
    show_stream("a");
}

static void growth(void)
{
    char bytes[100], back[100];
    int fd = create("a");
    int reader = open(at("a"), O_RDONLY);
    unsigned sum = 1;
    int bad = 0;
    for (unsigned round = 0; round < 200; round++) {
        fill(bytes, sizeof bytes, round);
        if (write(fd, bytes, sizeof bytes) != sizeof bytes)
            bad++;
        memset(back, 0, sizeof back);
        if (read(reader, back, sizeof back) != sizeof back || memcmp(bytes, back, sizeof back))
            bad++;
        sum = hash(sum, back, sizeof back);
        struct stat found;
        if (fstat(reader, &found) || found.st_size != 100 * ((long)round + 1))
            bad++;
        if (stat(at("a"), &found) || found.st_size != 100 * ((long)round + 1))
            bad++;
    }
    say("%d bad, %08x", bad, sum);
    told("writer's position", lseek(fd, 0, SEEK_CUR));
    told("reader's position", lseek(reader, 0, SEEK_CUR));
    told("at the end", read(reader, back, sizeof back));
    show("contents", reader);
    close(reader);
    close(fd);
    show_path("a");
    show_stream("a");
    show_attributes("a");
}

static void read_through_another(void)
{
    static char bytes[2 * LARGE];
    char back[32] = "";
    make("a", "before");
    int reader = open(at("a"), O_RDONLY);
    int writer = open(at("a"), O_RDWR);
    told("read", read(reader, back, 3));
    told("write", write(writer, "AFTERWARDS", 10));
    told("read on", read(reader, back, 32));
    say("\"%.7s\"", back);
    fill(bytes, sizeof bytes, 1);
    told("write much", write(writer, bytes, sizeof bytes));
    show("by the reader", reader);
    told("cut", ftruncate(writer, 4));
    show("by the reader", reader);
    told("reader's position", lseek(reader, 0, SEEK_CUR));
    told("read behind the end", read(reader, back, 32));
    close(writer);
    writer = open(at("a"), O_WRONLY);
    told("write", write(writer, "12345678901234567890", 20));
    show("by the reader", reader);
    told("read on", read(reader, back, 32));
    close(writer);
    close(reader);
    for (int size = LARGE - 1; size <= LARGE + 1; size++) {
        char name[32];
        snprintf(name, sizeof name, "size-%d", size);
        writer = create(name);
        told(name, write(writer, bytes, (size_t)size));
        told("one more", write(writer, "!", 1));
        told("position", lseek(writer, 0, SEEK_CUR));
        show(name, writer);
        close(writer);
        show_attributes(name);
        show_stream(name);
    }
}

/* What the kernel has seen of names and contents must not be told when it is old. */
static void seen_by_the_kernel(void)
{
    show_stream("a");
    make("a", "first");
    show_stream("a");
    int fd = open(at("a"), O_RDWR);
    put(fd, "FIRST");
    show_stream("a");
    told("append", pwrite(fd, "more", 4, 5));
    show_stream("a");
    show_attributes("a");
    told("fchmod", fchmod(fd, 0600));
    show_attributes("a");
    told("unlink", unlink(at("a")));
    show_stream("a");
    show_attributes("a");
    make("a", "second");
    show_stream("a");
    show("the old one", fd);
    close(fd);
    told("chmod", chmod(at("a"), 0444));
    show_attributes("a");
    told("mkdir", mkdir(at("d"), 0755));
    show_attributes("d");
    told("rmdir", rmdir(at("d")));
    show_attributes("d");
    told("symlink", symlink("a", at("d")));
    show_stream("d");
    told("unlink", unlink(at("d")));
    told("symlink", symlink("b", at("d")));
    show_stream("d");
    make("b", "of b");
    show_stream("d");
    show_path("d");
}

/* ---- Descriptors ---- */

static void duplicates(void)
{
    char bytes[8] = "";
    int fd = create("a");
    put(fd, "0123");
    int copy = dup(fd);
    told("position of the copy", lseek(copy, 0, SEEK_CUR));
    told("write", write(copy, "45", 2));
    told("position", lseek(fd, 0, SEEK_CUR));
    told("lseek", lseek(fd, 1, SEEK_SET));
    told("read from the copy", read(copy, bytes, 2));
    say("\"%.2s\"", bytes);
    told("position", lseek(fd, 0, SEEK_CUR));
    told("close", close(fd));
    told("write", write(copy, "XY", 2));
    show("copy", copy);

    int one = create("b"), other = create("c");
    put(one, "of b");
    put(other, "of c");
    told("dup2 onto an open one", dup2(one, other) - other);
    told("write", write(other, "+", 1));
    told("position", lseek(one, 0, SEEK_CUR));
    show_path("b");
    show_path("c");
    told("dup2 onto itself", dup2(one, one) - one);
    int third = create("d");
    close(third);
    told("dup2 onto a closed one", dup2(one, third) - third);
    told("write", write(third, "-", 1));
    show_path("b");
    told("dup2 of a closed one", dup2(900, third));
    told("still open", write(third, "=", 1));
    int fourth = create("e");
    told("dup2 of another file", dup2(0, fourth) - fourth);
    say("mode of 0: %d", (fcntl(fourth, F_GETFL) & O_ACCMODE) == (fcntl(0, F_GETFL) & O_ACCMODE));
    told("dup3", dup3(third, fourth, O_CLOEXEC) - fourth);
    told("F_GETFD", fcntl(fourth, F_GETFD));
    told("dup3 onto itself", dup3(third, third, 0));
    close(one);
    close(other);
    close(third);
    close(fourth);
    close(copy);
    show_path("b");
}

static void descriptor_flags(void)
{
    int fd = create("a");
    say("F_GETFL %o", (unsigned)fcntl(fd, F_GETFL));
    put(fd, "12345");
    told("F_SETFL", fcntl(fd, F_SETFL, O_APPEND));
    say("F_GETFL %o", (unsigned)fcntl(fd, F_GETFL));
    told("lseek", lseek(fd, 0, SEEK_SET));
    told("write", write(fd, "6", 1));
    show("contents", fd);
    told("F_GETFD", fcntl(fd, F_GETFD));
    told("F_SETFD", fcntl(fd, F_SETFD, FD_CLOEXEC));
    told("F_GETFD", fcntl(fd, F_GETFD));
    int copy = fcntl(fd, F_DUPFD, 100);
    told("F_DUPFD", copy);
    told("F_GETFD", fcntl(copy, F_GETFD));
    told("write", write(copy, "7", 1));
    int other = fcntl(fd, F_DUPFD_CLOEXEC, 100);
    told("F_DUPFD_CLOEXEC", other);
    told("F_GETFD", fcntl(other, F_GETFD));
    show("contents", fd);
    close(fd);
    close(copy);
    close(other);
    const int flags[] = { O_RDONLY, O_WRONLY, O_RDWR | O_APPEND, O_RDONLY | O_CLOEXEC,
        O_RDWR | O_NONBLOCK, O_RDONLY | O_NOFOLLOW, O_WRONLY | O_NOCTTY, O_RDWR | O_SYNC,
        O_RDONLY | O_PATH };
    make("b", "unknown to the kernel");
    for (size_t index = 0; index < sizeof flags / sizeof *flags; index++) {
        fd = open(at("b"), flags[index]);
        say("flags %o: F_GETFL %o, F_GETFD %d", (unsigned)flags[index],
            (unsigned)fcntl(fd, F_GETFL), fcntl(fd, F_GETFD));
        close(fd);
    }
}

static void closed_by_loop(void)
{
    int first = create("a"), second = create("b");
    put(first, "one");
    put(second, "two");
    int closed = 0;
    for (int fd = 3; fd < 1024; fd++)
        closed += close(fd) == 0;
    say("closed at least two: %d", closed >= 2);
    told("write", write(first, "x", 1));
    told("lseek", lseek(second, 0, SEEK_CUR));
    show_path("a");
    show_path("b");
    first = create("c");
    say("lowest number: %d", first == 3);
    put(first, "three");
    show("c", first);
    told("close", close(first));
    show_attributes("c");
}

static void closed_by_range(void)
{
    int first = create("a"), second = create("b");
    put(first, "one");
    put(second, "two");
    told("on exec", close_range(3, ~0U, CLOSE_RANGE_CLOEXEC));
    told("F_GETFD", fcntl(first, F_GETFD));
    told("write", write(first, "+", 1));
    told("close_range", close_range(3, ~0U, 0));
    told("write", write(first, "x", 1));
    told("close", close(second));
    show_path("a");
    show_path("b");
    first = create("c");
    say("lowest number: %d", first == 3);
    put(first, "three");
    show("c", first);
    closefrom(3);
    told("write", write(first, "x", 1));
    show_path("c");
    /* Numbers up to the largest are the program's to use. */
    first = create("d");
    for (int number = 940; number < 1024; number++) {
        if (dup2(first, number) != number)
            say("dup2 to %d: %s", number, error_name(errno));
    }
    told("write", write(1023, "by 1023", 7));
    show_path("d");
    make("e", "made meanwhile");
    show_path("e");
    told("write", write(960, ", by 960", 8));
    closefrom(3);
    show_path("d");
    show_path("e");
}

/* Numbers that stand for the first three streams. */
static void low_numbers(void)
{
    char bytes[16] = "";
    int input = dup(0), output = dup(1);
    make("a", "as input");
    close(0);
    int fd = open(at("a"), O_RDONLY);
    say("0 is it: %d", fd == 0);
    told("read", read(0, bytes, sizeof bytes));
    say("\"%.8s\"", bytes);
    fflush(stdout);
    close(1);
    fd = open(at("b"), CREATE | O_EXCL, 0600);
    printf("by printf\n");
    fflush(stdout);
    int result = system("echo by a shell");
    dup2(output, 1);
    say("1 was it: %d, system %d", fd == 1, result);
    close(output);
    show_path("b");
    close(0);
    fd = open(at("c"), CREATE | O_EXCL, 0600);
    say("0 is it: %d", fd == 0);
    told("write", write(0, "text", 4));
    told("position", lseek(0, 0, SEEK_CUR));
    show("c", 0);
    dup2(input, 0);
    close(input);
    fd = create("d");
    dup2(fd, 0);
    put(0, "by 0");
    show("d", fd);
    int null = open("/dev/null", O_RDONLY);
    dup2(null, 0);
    close(null);
    close(fd);
}

static void bad_buffers(void)
{
    char *nothing = mmap(NULL, 8192, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (nothing == MAP_FAILED)
        die("mmap");
    int fd = create("a"), other = create("b");
    put(fd, "text");
    put(other, "other");
    told("write", write(fd, nothing, 5));
    told("pwrite", pwrite(fd, nothing, 5, 0));
    told("read", pread(fd, nothing, 4, 0));
    told("position", lseek(fd, 0, SEEK_CUR));
    told("write on", write(fd, "!", 1));
    show("a", fd);
    show("b", other);
    close(fd);
    close(other);
    munmap(nothing, 8192);
}

static void asynchronous(void)
{
    char bytes[16] = "";
    int fd = create("a");
    put(fd, "text");
    struct aiocb ask = { .aio_fildes = fd, .aio_buf = "by aio", .aio_nbytes = 6,
        .aio_offset = 2 };
    const struct aiocb *const asked[] = { &ask };
    told("aio_write", aio_write(&ask));
    told("aio_suspend", aio_suspend(asked, 1, NULL));
    told("aio_return", aio_return(&ask));
    show("contents", fd);
    told("position", lseek(fd, 0, SEEK_CUR));
    close(fd);
    fd = open(at("a"), O_RDONLY);
    ask = (struct aiocb){ .aio_fildes = fd, .aio_buf = bytes, .aio_nbytes = 16 };
    told("aio_read", aio_read(&ask));
    told("aio_suspend", aio_suspend(asked, 1, NULL));
    told("aio_return", aio_return(&ask));
    say("\"%.8s\"", bytes);
    close(fd);
}

/* A descriptor that a process is sent. */
static void sent(void)
{
    int pair[2];
    if (socketpair(AF_UNIX, SOCK_STREAM, 0, pair))
        die("socketpair");
    int fd = create("a");
    put(fd, "sent ");
    char byte = 'x';
    struct iovec part = { &byte, 1 };
    union {
        struct cmsghdr header;
        char bytes[CMSG_SPACE(sizeof(int))];
    } control;
    memset(&control, 0, sizeof control);
    struct msghdr message = { .msg_iov = &part, .msg_iovlen = 1, .msg_control = &control,
        .msg_controllen = sizeof control };
    control.header.cmsg_level = SOL_SOCKET;
    control.header.cmsg_type = SCM_RIGHTS;
    control.header.cmsg_len = CMSG_LEN(sizeof(int));
    memcpy(CMSG_DATA(&control.header), &fd, sizeof fd);
    told("sendmsg", sendmsg(pair[0], &message, 0));
    close(fd);
    told("recvmsg", recvmsg(pair[1], &message, 0));
    memcpy(&fd, CMSG_DATA(&control.header), sizeof fd);
    told("write", write(fd, "received", 8));
    told("position", lseek(fd, 0, SEEK_CUR));
    show("contents", fd);
    close(fd);
    close(pair[0]);
    close(pair[1]);
}

/* ---- Processes ---- */

static void fork_shares(void)
{
    int fd = create("a");
    put(fd, "parent ");
    pid_t child = forked();
    if (child == 0) {
        told("position in the child", lseek(fd, 0, SEEK_CUR));
        put(fd, "child ");
        show_fstat("in the child", fd);
        close(fd);
        _exit(7);
    }
    ended("child", child);
    told("position", lseek(fd, 0, SEEK_CUR));
    put(fd, "again");
    show("contents", fd);
    child = forked();
    if (child == 0) {
        lseek(fd, 2, SEEK_SET);
        _exit(0);
    }
    ended("child that seeks", child);
    told("position", lseek(fd, 0, SEEK_CUR));
    close(fd);
    show_path("a");
    fd = create("b");
    put(fd, "parent ");
    child = (pid_t)syscall(SYS_fork);
    if (child == 0) {
        put(fd, "child ");
        make("c", "by the child");
        _exit(0);
    }
    ended("by the kernel's fork", child);
    told("position", lseek(fd, 0, SEEK_CUR));
    show("contents", fd);
    close(fd);
    show_path("c");
}

static void fork_works_on(void)
{
    make("of-parent", "before");
    int kept = create("kept");
    pid_t child = forked();
    if (child == 0) {
        int fd = opened("in the child", open(at("of-child"), CREATE | O_EXCL, 0600));
        put(fd, "made in the child");
        told("mkdir", mkdir(at("dir-of-child"), 0700));
        told("unlink", unlink(at("of-parent")));
        show("in the child", fd);
        pid_t grandchild = forked();
        if (grandchild == 0) {
            put(fd, ", and in its child");
            put(kept, "grandchild ");
            make("of-grandchild", "deep");
            _exit(1);
        }
        ended("grandchild", grandchild);
        told("position", lseek(fd, 0, SEEK_CUR));
        put(kept, "child ");
        exit(0);
    }
    ended("child", child);
    put(kept, "parent");
    show("kept", kept);
    close(kept);
    show_path("of-child");
    show_path("of-grandchild");
    show_attributes("of-parent");
    show_attributes("dir-of-child");
}

/* Processes that open one file each for themselves, and race for another. */
static void processes_append(void)
{
    pid_t children[4];
    for (int index = 0; index < 4; index++) {
        children[index] = forked();
        if (children[index] == 0) {
            char line[32], name[32];
            int fd = open(at("lines"), O_CREAT | O_WRONLY | O_APPEND, 0644), won = 0;
            for (int round = 0; round < 100; round++) {
                size_t len = 5 + (size_t)(round * 5 + index) % 20;
                memset(line, 'a' + index, len);
                line[len] = '\n';
                if (write(fd, line, len + 1) != (ssize_t)len + 1)
                    _exit(100);
                snprintf(name, sizeof name, "lock-%d", round);
                int lock = open(at(name), O_CREAT | O_EXCL | O_WRONLY, 0600);
                if (lock == -1 && errno != EEXIST)
                    _exit(101);
                if (lock != -1) {
                    won++;
                    close(lock);
                    fd = dup2(fd, fd);
                }
            }
            /* Each win is a byte of a file. */
            int wins = open(at("wins"), O_CREAT | O_WRONLY | O_APPEND, 0644);
            while (won-- > 0)
                put(wins, "w");
            _exit(0);
        }
    }
    for (int index = 0; index < 4; index++)
        ended("child", children[index]);
    show_attributes("wins");
    show_attributes("lines");
    int lines, torn;
    count_lines("lines", &lines, &torn);
    say("%d lines, %d torn", lines, torn);
}

static void vfork_shell(void)
{
    char command[64];
    int fd = create("a");
    put(fd, "before ");
    snprintf(command, sizeof command, "echo hi >&%d", fd);
    fflush(stdout);
    pid_t child = vfork();
    if (child == 0) {
        execl("/bin/sh", "sh", "-c", command, (char *)NULL);
        _exit(127);
    }
    ended("vfork", child);
    told("position", lseek(fd, 0, SEEK_CUR));
    put(fd, "after");
    show("contents", fd);
    const char *path = at("b");
    child = vfork();
    if (child == 0) {
        int other = open(path, CREATE, 0600);
        dup2(other, 9);
        close(other);
        close(fd);
        execl("/bin/sh", "sh", "-c", "echo by sh >&9", (char *)NULL);
        _exit(127);
    }
    ended("vfork that opens", child);
    put(fd, "still open");
    show("contents", fd);
    close(fd);
    show_path("b");
}

static void spawned(void)
{
    int fd = create("a");
    put(fd, "before ");
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, fd, 1);
    posix_spawn_file_actions_addopen(&actions, 2, at("b"), O_CREAT | O_WRONLY, 0640);
    char *arguments[] = { "sh", "-c", "echo out; echo error >&2", NULL };
    pid_t child = -1;
    told("posix_spawn", posix_spawn(&child, "/bin/sh", &actions, NULL, arguments, environ));
    ended("spawned", child);
    posix_spawn_file_actions_destroy(&actions);
    told("position", lseek(fd, 0, SEEK_CUR));
    put(fd, "after");
    show("contents", fd);
    close(fd);
    show_path("b");
    show_attributes("b");
    char *simple[] = { "sh", "-c", "exit 5", NULL };
    told("posix_spawnp", posix_spawnp(&child, "sh", NULL, NULL, simple, environ));
    ended("spawned", child);
}

static void by_shell(void)
{
    char command[3000], line[100] = "";
    int fd = create("a");
    put(fd, "a line\n");
    snprintf(command, sizeof command, "cat '%s'", at("a"));
    FILE *from = popen(command, "r");
    if (!from)
        die("popen");
    say("popen: \"%.6s\"", fgets(line, sizeof line, from) ? line : "none");
    say("pclose %d", pclose(from));
    snprintf(command, sizeof command, "echo by system >> '%s'; cp '%s' '%s'", at("a"), at("a"),
        at("b"));
    fflush(stdout);
    say("system %d", system(command));
    show("a", fd);
    put(fd, "A LINE\n");
    show("a", fd);
    close(fd);
    show_path("b");
    snprintf(command, sizeof command, "wc -l >'%s'", at("c"));
    FILE *to = popen(command, "w");
    if (!to)
        die("popen");
    fprintf(to, "1\n2\n3\n");
    say("pclose %d", pclose(to));
    show_path("c");
    fd = open(at("script"), O_CREAT | O_WRONLY, 0755);
    put(fd, "#!/bin/sh\necho by a script > \"$1\"\nexit 3\n");
    close(fd);
    const char *script = at("script"), *output = at("d");
    pid_t child = forked();
    if (child == 0) {
        execl(script, script, output, (char *)NULL);
        _exit(127);
    }
    ended("script", child);
    show_path("d");
}

static void exec_of_itself(void)
{
    char number[16];
    int fd = create("a");
    put(fd, "before ");
    snprintf(number, sizeof number, "%d", fd);
    pid_t child = forked();
    if (child == 0) {
        execl(self, self, "--write", number, "by itself ", (char *)NULL);
        _exit(127);
    }
    ended("execl", child);
    told("position", lseek(fd, 0, SEEK_CUR));
    put(fd, "after");
    show("contents", fd);
    close(fd);
    fd = open(at("b"), CREATE | O_CLOEXEC, 0644);
    snprintf(number, sizeof number, "%d", fd);
    child = forked();
    if (child == 0) {
        char *arguments[] = { self, "--write", number, "x", NULL };
        execv(self, arguments);
        _exit(127);
    }
    ended("with O_CLOEXEC", child);
    told("F_GETFD", fcntl(fd, F_GETFD));
    told("F_SETFD", fcntl(fd, F_SETFD, 0));
    child = forked();
    if (child == 0) {
        char *arguments[] = { self, "--write", number, "y", NULL };
        execve(self, arguments, environ);
        _exit(127);
    }
    ended("without it", child);
    /* An exec that fails leaves all as it is. */
    told("no such program", execl(at("none"), "none", (char *)NULL));
    put(fd, "z");
    show("contents", fd);
    close(fd);
}

/* A call's result, to be told when this program may write again. */
static long kept(long value)
{
    return value == -1 ? -errno : value;
}

static void limited(void)
{
    pid_t child = forked();
    if (child == 0) {
        signal(SIGXFSZ, SIG_IGN);
        int before = create("a");
        put(before, "1234");
        struct rlimit limit, old;
        getrlimit(RLIMIT_FSIZE, &old);
        limit = old;
        limit.rlim_cur = 10;
        long results[8];
        results[0] = kept(setrlimit(RLIMIT_FSIZE, &limit));
        results[1] = kept(write(before, "567890123", 9));
        results[2] = kept(write(before, "4", 1));
        int fd = create("b");
        results[3] = kept(pwrite(fd, "12345678", 8, 8));
        results[4] = kept(ftruncate(fd, 11));
        results[5] = kept(ftruncate(fd, 9));
        results[6] = kept(truncate(at("a"), 11));
        results[7] = kept(setrlimit(RLIMIT_FSIZE, &old));
        for (int index = 0; index < 8; index++)
            say("%s", results[index] < 0 ? error_name(-(int)results[index]) : "done");
        told("and on", write(before, "+", 1));
        show("a", before);
        show("b", fd);
        exit(0);
    }
    ended("limited", child);
    show_path("a");
    show_path("b");
}

static void as_another_user(void)
{
    if (geteuid() != 0) {
        say("not root");
        return;
    }
    told("mkdir", mkdir(at("open"), 0777));
    told("chmod", chmod(at("open"), 0777));
    told("mkdir", mkdir(at("shut"), 0700));
    make("secret", "of root");
    told("chmod", chmod(at("secret"), 0600));
    int kept = create("kept");
    pid_t child = forked();
    if (child == 0) {
        struct stat found;
        put(kept, "before ");
        int mine = create("of-child");
        told("seteuid", seteuid(65534));
        put(kept, "during ");
        put(mine, "text");
        int fd = opened("in an open directory", open(at("open/a"), CREATE | O_EXCL, 0644));
        told("fstat", fstat(fd, &found));
        say("owner %u", (unsigned)found.st_uid);
        close(fd);
        opened("in a shut one", open(at("shut/a"), CREATE, 0644));
        opened("secret", open(at("secret"), O_RDONLY));
        told("chmod", chmod(at("secret"), 0644));
        told("mkdir", mkdir(at("open/d"), 0755));
        told("stat", stat(at("open/d"), &found));
        say("owner %u", (unsigned)found.st_uid);
        told("seteuid", seteuid(0));
        put(kept, "after");
        show("of-child", mine);
        fd = opened("secret", open(at("secret"), O_RDONLY));
        show("secret", fd);
        told("stat", stat(at("open/a"), &found));
        say("owner %u", (unsigned)found.st_uid);
        exit(0);
    }
    ended("child", child);
    show("kept", kept);
    close(kept);
    make("as-before", "by root");
    show_attributes("as-before");
    struct stat found;
    told("stat", stat(at("open/a"), &found));
    say("owner %u", (unsigned)found.st_uid);
    told("chown", chown(at("as-before"), 65534, 65534));
    told("lstat", lstat(at("as-before"), &found));
    say("owner %u:%u", (unsigned)found.st_uid, (unsigned)found.st_gid);
}

/* ---- What the kernel does with a descriptor ---- */

static void mapping(void)
{
    char bytes[16] = "";
    int fd = create("a");
    told("ftruncate", ftruncate(fd, 8192));
    char *map = mmap(NULL, 8192, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (map == MAP_FAILED) {
        say("mmap: %s", error_name(errno));
        close(fd);
        return;
    }
    memcpy(map, "by the map", 10);
    memcpy(map + 5000, "far", 3);
    told("msync", msync(map, 8192, MS_SYNC));
    told("read", read(fd, bytes, 10));
    say("\"%.10s\"", bytes);
    int other = open(at("a"), O_RDWR);
    show("by another", other);
    told("pwrite", pwrite(fd, "PW", 2, 3));
    say("\"%.10s\"", map);
    told("munmap", munmap(map, 8192));
    close(other);
    close(fd);
    show_path("a");
    fd = create("b");
    put(fd, "small text");
    map = mmap(NULL, 4096, PROT_READ, MAP_PRIVATE, fd, 0);
    say("small: \"%.10s\"", map == MAP_FAILED ? "-" : map);
    if (map != MAP_FAILED)
        munmap(map, 4096);
    put(fd, ", and more");
    close(fd);
    show_path("b");
}

static void streams(void)
{
    int fd = create("a");
    put(fd, "by descriptor, ");
    FILE *stream = fdopen(fd, "r+");
    if (!stream)
        die("fdopen");
    fprintf(stream, "by stream %d", 17);
    told("fflush", fflush(stream));
    show("contents", fd);
    told("position", lseek(fd, 0, SEEK_CUR));
    told("fileno", fileno(stream) - fd);
    told("fclose", fclose(stream));
    told("closed", write(fd, "x", 1));
    show_path("a");
    fd = create("b");
    put(fd, "still open");
    show_stream("b");
    stream = fopen(at("b"), "a");
    if (!stream)
        die("fopen");
    fprintf(stream, ", appended");
    fclose(stream);
    show("b", fd);
    put(fd, "!");
    show("b", fd);
    stream = freopen(at("b"), "r", fopen("/dev/null", "r"));
    if (!stream)
        die("freopen");
    char line[64] = "";
    say("\"%.20s\"", fgets(line, sizeof line, stream) ? line : "none");
    fclose(stream);
    close(fd);
    stream = fopen(at("c"), "w");
    if (!stream)
        die("fopen");
    fprintf(stream, "by stream");
    show_attributes("c");
    fflush(stream);
    show_path("c");
    show_attributes("c");
    fclose(stream);
}

static void locks(void)
{
    int one = create("a"), other = open(at("a"), O_RDWR);
    told("one", flock(one, LOCK_EX));
    told("other", flock(other, LOCK_EX | LOCK_NB));
    told("unlock", flock(one, LOCK_UN));
    told("other", flock(other, LOCK_SH | LOCK_NB));
    told("one", flock(one, LOCK_SH | LOCK_NB));
    told("more", flock(one, LOCK_EX | LOCK_NB));
    told("write", write(one, "locked", 6));
    close(other);
    told("alone", flock(one, LOCK_EX | LOCK_NB));
    close(one);
    show_path("a");
}

static void record_locks(void)
{
    int fd = create("a");
    put(fd, "0123456789");
    struct flock lock = { .l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = 2, .l_len = 4 };
    told("F_SETLK", fcntl(fd, F_SETLK, &lock));
    pid_t child = forked();
    if (child == 0) {
        int own = open(at("a"), O_RDWR);
        told("in the child", fcntl(own, F_SETLK, &lock));
        told("F_GETLK", fcntl(own, F_GETLK, &lock));
        say("held %d from %ld for %ld by the parent %d", lock.l_type == F_WRLCK,
            (long)lock.l_start, (long)lock.l_len, lock.l_pid == getppid());
        lock.l_type = F_WRLCK;
        lock.l_start = 6;
        told("beside", fcntl(own, F_SETLK, &lock));
        lseek(own, 2, SEEK_SET);
        told("F_TLOCK", lockf(own, F_TLOCK, 1));
        told("F_TEST", lockf(own, F_TEST, 1));
        exit(0);
    }
    ended("child", child);
    /* Closing any descriptor of the file gives the locks up. */
    close(open(at("a"), O_RDONLY));
    child = forked();
    if (child == 0) {
        int own = open(at("a"), O_RDWR);
        lock.l_type = F_WRLCK;
        told("after a close", fcntl(own, F_SETLK, &lock));
        exit(0);
    }
    ended("child", child);
    lock.l_type = F_RDLCK;
    told("F_OFD_SETLK", fcntl(fd, F_OFD_SETLK, &(struct flock){ .l_type = F_WRLCK }));
    int other = open(at("a"), O_RDWR);
    told("F_OFD_SETLK", fcntl(other, F_OFD_SETLK, &(struct flock){ .l_type = F_WRLCK }));
    close(other);
    close(fd);
}

static void waited_for(void)
{
    int fd = create("a");
    put(fd, "x");
    struct pollfd asked = { .fd = fd, .events = POLLIN | POLLOUT };
    told("poll", poll(&asked, 1, 0));
    say("ready %d", asked.revents);
    close(fd);
    fd = create("b");
    fd_set reads, writes;
    FD_ZERO(&reads);
    FD_ZERO(&writes);
    FD_SET(fd, &reads);
    FD_SET(fd, &writes);
    struct timeval none = { 0, 0 };
    told("select", select(fd + 1, &reads, &writes, NULL, &none));
    say("reads %d, writes %d", FD_ISSET(fd, &reads) != 0, FD_ISSET(fd, &writes) != 0);
    put(fd, "y");
    show("b", fd);
    close(fd);
    fd = create("c");
    say("a terminal: %d", isatty(fd));
    say("%s", error_name(errno));
    close(fd);
    asked.fd = fd;
    told("poll of a closed one", poll(&asked, 1, 0));
    say("ready %d", asked.revents);
}

static void copy_by_hand(int from, int to)
{
    char bytes[1000];
    ssize_t got;
    while ((got = read(from, bytes, sizeof bytes)) > 0) {
        if (write(to, bytes, (size_t)got) != got)
            die("write");
    }
}

static void copies(void)
{
    static char bytes[3 * LARGE];
    fill(bytes, sizeof bytes, 11);
    const size_t sizes[] = { 0, 10, LARGE, sizeof bytes };
    for (int index = 0; index < 4; index++) {
        char from[16], to[16], other[16];
        snprintf(from, sizeof from, "from-%d", index);
        snprintf(to, sizeof to, "to-%d", index);
        snprintf(other, sizeof other, "other-%d", index);
        int source = create(from);
        told("write", write(source, bytes, sizes[index]));
        int sink = create(to);
        lseek(source, 0, SEEK_SET);
        while (1) {
            ssize_t moved = copy_file_range(source, NULL, sink, NULL, 5000, 0);
            if (moved > 0)
                continue;
            if (moved == -1)
                copy_by_hand(source, sink);
            break;
        }
        told("position", lseek(sink, 0, SEEK_CUR));
        show(to, sink);
        close(sink);
        sink = create(other);
        off_t offset = 2;
        while (sendfile(sink, source, &offset, 5000) > 0)
            ;
        told("offset", offset);
        told("position", lseek(sink, 0, SEEK_CUR));
        close(sink);
        close(source);
        show_path(to);
        show_path(other);
    }
    int ends[2];
    if (pipe(ends))
        die("pipe");
    int source = open(at("from-1"), O_RDONLY);
    told("splice", splice(source, NULL, ends[1], NULL, 10, 0));
    told("read", read(ends[0], bytes, 100));
    told("position", lseek(source, 0, SEEK_CUR));
    close(source);
    close(ends[0]);
    close(ends[1]);
}

static void allocated(void)
{
    int fd = create("a");
    put(fd, "text");
    told("posix_fallocate", posix_fallocate(fd, 0, 100));
    show("a", fd);
    told("beyond", posix_fallocate(fd, 90, LARGE * 2));
    show("a", fd);
    told("position", lseek(fd, 0, SEEK_CUR));
    close(fd);
    fd = create("b");
    if (fallocate(fd, 0, 0, 50) && ftruncate(fd, 50))
        die("ftruncate");
    show("b", fd);
    told("fadvise", posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED));
    close(fd);
    show_attributes("a");
    show_attributes("b");
}

static void synced(void)
{
    int fd = create("a");
    put(fd, "text");
    told("fsync", fsync(fd));
    told("fdatasync", fdatasync(fd));
    put(fd, ", more");
    told("syncfs", syncfs(fd));
    close(fd);
    told("fsync of a closed one", fsync(fd));
    fd = open(at("."), O_RDONLY | O_DIRECTORY);
    told("fsync of a directory", fsync(fd));
    close(fd);
    show_path("a");
}

static void by_proc(void)
{
    char path[64], bytes[32] = "";
    int fd = create("a");
    put(fd, "by number");
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    int other = opened("in proc", open(path, O_RDONLY));
    told("read", read(other, bytes, 32));
    say("\"%.9s\"", bytes);
    struct stat found;
    show_stat("stat", stat(path, &found), &found);
    close(other);
    snprintf(path, sizeof path, "/dev/fd/%d", fd);
    other = opened("in dev", open(path, O_WRONLY | O_APPEND));
    told("write", write(other, "!", 1));
    close(other);
    told("chmod", chmod(path, 0600));
    told("truncate", truncate(path, 6));
    FILE *stream = fopen(path, "r");
    say("by stream: %s", stream && fgets(bytes, sizeof bytes, stream) ? bytes : "none");
    if (stream)
        fclose(stream);
    show("contents", fd);
    told("unlink", unlink(at("a")));
    other = opened("when unlinked", open(path, O_RDWR));
    told("write", write(other, "B", 1));
    close(other);
    show("contents", fd);
    close(fd);
}

/* ---- Names ---- */

static void unlinked(void)
{
    int fd = create("a");
    put(fd, "before");
    told("unlink", unlink(at("a")));
    show_attributes("a");
    told("again", unlink(at("a")));
    told("write", write(fd, ", after", 7));
    show("contents", fd);
    show_fstat("fstat", fd);
    told("fchmod", fchmod(fd, 0600));
    told("ftruncate", ftruncate(fd, 3));
    show_fstat("fstat", fd);
    int copy = dup(fd);
    told("write", pwrite(copy, "copy", 4, 3));
    static char bytes[2 * LARGE];
    told("much", write(fd, bytes, sizeof bytes));
    show("contents", copy);
    make("a", "another");
    show("contents", copy);
    close(copy);
    close(fd);
    show_path("a");
    fd = open(at("a"), O_RDONLY);
    told("unlink", unlink(at("a")));
    pid_t child = forked();
    if (child == 0) {
        show("in a child", fd);
        _exit(0);
    }
    ended("child", child);
    show("contents", fd);
    close(fd);
}

static void renamed_over(void)
{
    make("old", "the old one");
    int fd = open(at("old"), O_RDWR);
    int other = create("new");
    put(other, "the new one");
    told("rename", rename(at("new"), at("old")));
    show("by descriptor", fd);
    show_path("old");
    show_attributes("new");
    show_fstat("replaced", fd);
    show_fstat("renamed", other);
    told("write", write(fd, "THE", 3));
    told("write", write(other, ", more", 6));
    show("replaced", fd);
    show_path("old");
    show_stream("old");
    close(fd);
    close(other);
    told("rename to itself", rename(at("old"), at("old")));
    told("rename of none", rename(at("none"), at("old")));
    told("mkdir", mkdir(at("d"), 0755));
    told("onto a directory", rename(at("old"), at("d")));
    told("into a directory", rename(at("old"), at("d/moved")));
    told("onto a full one", rename(at("."), at("d")));
    show_path("d/moved");
    told("no replacing",
        renameat2(AT_FDCWD, at("d/moved"), AT_FDCWD, at("free"), RENAME_NOREPLACE));
    show_path("free");
    make("x", "of x");
    fd = open(at("x"), O_RDONLY);
    told("exchange", renameat2(AT_FDCWD, at("x"), AT_FDCWD, at("free"), RENAME_EXCHANGE));
    show("x as it was", fd);
    show_path("x");
    show_path("free");
    close(fd);
}

static void renamed_above(void)
{
    char before[PATH_MAX], now[PATH_MAX];
    if (!getcwd(before, sizeof before))
        die("getcwd");
    told("mkdir", mkdir(at("d"), 0755));
    told("mkdir", mkdir(at("d/e"), 0755));
    make("d/e/f", "deep");
    make("other", "elsewhere");
    int fd = open(at("d/e/f"), O_RDWR | O_APPEND);
    int dir = open(at("d/e"), O_RDONLY | O_DIRECTORY);
    told("chdir", chdir(at("d/e")));
    if (is_relative)
        told("rename", rename("../../d", "../../moved"));
    else
        told("rename", rename(at("d"), at("moved")));
    told("write", write(fd, ", renamed", 9));
    int other = opened("relative", open("f", O_RDONLY));
    show("relative", other);
    close(other);
    other = opened("new", open("new", CREATE | O_EXCL, 0644));
    put(other, "made after it");
    told("mkdir", mkdir("g", 0755));
    other = opened("up", open("../../other", O_RDONLY));
    show("up", other);
    close(other);
    other = opened("by its directory", openat(dir, "f", O_RDONLY));
    show("by its directory", other);
    close(other);
    told("getcwd", getcwd(now, sizeof now) ? 0 : -1);
    say("ends in moved/e: %d", strstr(now, "/moved/e") != NULL);
    told("chdir", chdir(before));
    show_attributes("d");
    show_path("moved/e/f");
    show_path("moved/e/new");
    show_attributes("moved/e/g");
    show("by descriptor", fd);
    make("d", "a file by now");
    opened("the old path", open(at("d/e/f"), O_RDONLY));
    told("unlinkat", unlinkat(dir, "f", 0));
    show_fstat("unlinked", fd);
    show_attributes("moved/e/f");
    close(dir);
    close(fd);
}

static void links(void)
{
    char target[64] = "";
    struct stat found;
    make("a", "the file");
    told("mkdir", mkdir(at("d"), 0755));
    told("symlink", symlink("a", at("l")));
    told("symlink again", symlink("a", at("l")));
    told("symlink to a directory", symlink("d", at("ld")));
    told("symlink to itself", symlink("loop", at("loop")));
    told("symlink to nothing", symlink("", at("empty")));
    told("symlink in none", symlink("a", at("none/l")));
    told("readlink", readlink(at("l"), target, sizeof target));
    say("\"%.1s\"", target);
    told("readlink of much", readlink(at("loop"), target, sizeof target));
    told("readlink of little", readlink(at("loop"), target, 2));
    say("\"%.4s\"", target);
    told("readlink of a file", readlink(at("a"), target, sizeof target));
    told("readlink of a directory", readlink(at("d"), target, sizeof target));
    told("readlink of none", readlink(at("none"), target, sizeof target));
    show_attributes("l");
    show_stat("stat l", stat(at("l"), &found), &found);
    show_stat("stat ld", stat(at("ld"), &found), &found);
    show_stat("stat loop", stat(at("loop"), &found), &found);
    show_stat("lstat loop", lstat(at("loop"), &found), &found);
    int fd = opened("through it", open(at("l"), O_RDWR));
    put(fd, "THE");
    close(fd);
    show_path("a");
    opened("O_NOFOLLOW", open(at("l"), O_RDONLY | O_NOFOLLOW));
    fd = opened("O_NOFOLLOW of a file", open(at("a"), O_RDONLY | O_NOFOLLOW));
    close(fd);
    opened("loop", open(at("loop"), O_RDONLY));
    opened("through loop", open(at("loop/x"), O_RDONLY));
    make("ld/in", "in the directory");
    show_path("d/in");
    show_path("ld/in");
    fd = opened("O_NOFOLLOW below it", open(at("ld/in"), O_RDONLY | O_NOFOLLOW));
    close(fd);
    opened("O_DIRECTORY and O_NOFOLLOW", open(at("ld"), O_DIRECTORY | O_NOFOLLOW));
    told("chmod through it", chmod(at("l"), 0600));
    show_attributes("a");
    told("unlink", unlink(at("l")));
    show_attributes("a");
    char path[2100];
    snprintf(path, sizeof path, "%s/a", place);
    told("symlink from the root", symlink(path, at("absolute")));
    show_path("absolute");
    told("symlink up", symlink("../a", at("d/up")));
    show_path("d/up");
    told("symlink out", symlink("/dev/null", at("out")));
    show_path("out");
    told("mkdir at a link", mkdir(at("ld"), 0755));
    told("rmdir of a link", rmdir(at("ld")));
    told("unlinkat of a link", unlinkat(AT_FDCWD, at("ld"), 0));
    char *whole = realpath(at("absolute"), NULL);
    say("realpath ends in a: %d", whole && strcmp(whole + strlen(whole) - 2, "/a") == 0);
    free(whole);
}

static void hard_links(void)
{
    int fd = create("a");
    put(fd, "one name");
    told("link", link(at("a"), at("b")));
    show_fstat("fstat", fd);
    show_attributes("a");
    show_attributes("b");
    put(fd, ", more");
    show_path("b");
    int other = open(at("b"), O_RDWR | O_APPEND);
    told("write", write(other, ", by the other", 14));
    show("by the first", fd);
    static char bytes[2 * LARGE];
    fill(bytes, sizeof bytes, 2);
    told("much", write(other, bytes, sizeof bytes));
    show("by the first", fd);
    told("cut", ftruncate(fd, 8));
    show("by the other", other);
    told("unlink", unlink(at("a")));
    show_fstat("fstat", fd);
    show_path("b");
    told("write", write(fd, "+", 1));
    show_path("b");
    show_stream("b");
    close(other);
    close(fd);
    told("link again", link(at("b"), at("b")));
    told("link of none", link(at("none"), at("c")));
    told("link of a directory", link(at("."), at("c")));
    told("linkat", linkat(AT_FDCWD, at("b"), AT_FDCWD, at("c"), 0));
    told("rename to its other name", rename(at("b"), at("c")));
    show_attributes("b");
    show_attributes("c");
    fd = create("d");
    put(fd, "by number");
    char path[64];
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    told("linkat by number", linkat(AT_FDCWD, path, AT_FDCWD, at("e"), AT_SYMLINK_FOLLOW));
    put(fd, "!");
    close(fd);
    show_path("e");
}

static void show_mtime(const char *name, long seconds, long nanoseconds)
{
    struct stat found, kernels;
    int result = stat(at(name), &found);
    long other = syscall(SYS_newfstatat, AT_FDCWD, at(name), &kernels, 0L);
    say("%s: mtime is what was set: %d %d", name,
        result == 0 && found.st_mtim.tv_sec == seconds && found.st_mtim.tv_nsec == nanoseconds,
        other == 0 && kernels.st_mtim.tv_sec == seconds &&
            kernels.st_mtim.tv_nsec == nanoseconds);
}

static void attributes(void)
{
    int fd = create("a");
    put(fd, "text");
    told("chmod", chmod(at("a"), 0751));
    show_attributes("a");
    told("fchmod", fchmod(fd, 0640));
    show_attributes("a");
    told("fchmod to none", fchmod(fd, 0));
    told("write", write(fd, "+", 1));
    int copy = dup(fd);
    told("write", write(copy, "-", 1));
    close(copy);
    show("contents", fd);
    told("fchmod", fchmod(fd, 0604));
    told("fchown", fchown(fd, geteuid(), getegid()));
    told("fchown to the same", fchown(fd, (uid_t)-1, (gid_t)-1));
    show_fstat("fstat", fd);
    told("chown", chown(at("a"), geteuid(), (gid_t)-1));
    told("lchown", lchown(at("a"), (uid_t)-1, getegid()));
    told("fchmodat", fchmodat(AT_FDCWD, at("a"), 0600, 0));
    show_attributes("a");
    struct timespec times[2] = { { 1000, 5000 }, { 2000, 123456000 } };
    told("utimensat", utimensat(AT_FDCWD, at("a"), times, 0));
    show_mtime("a", 2000, 123456000);
    times[1].tv_sec = 3000;
    told("futimens", futimens(fd, times));
    show_mtime("a", 3000, 123456000);
    times[0].tv_nsec = UTIME_NOW;
    times[1].tv_nsec = UTIME_OMIT;
    told("omitted", futimens(fd, times));
    show_mtime("a", 3000, 123456000);
    times[1].tv_nsec = 2000000000;
    told("a bad time", futimens(fd, times));
    struct timeval old[2] = { { 10, 20 }, { 30, 40 } };
    told("utimes", utimes(at("a"), old));
    show_mtime("a", 30, 40000);
    told("futimes", (old[1].tv_sec = 31, futimes(fd, old)));
    show_mtime("a", 31, 40000);
    told("close", close(fd));
    show_mtime("a", 31, 40000);
    fd = open(at("a"), O_RDONLY);
    show("a", fd);
    close(fd);
    show_mtime("a", 31, 40000);
    fd = open(at("a"), O_WRONLY);
    put(fd, "T");
    close(fd);
    struct stat found;
    told("stat", stat(at("a"), &found));
    say("written after it was set: %d", found.st_mtim.tv_sec > 1000000);
    told("utimensat to now", utimensat(AT_FDCWD, at("a"), NULL, 0));
    told("symlink", symlink("a", at("l")));
    times[0] = times[1] = (struct timespec){ 77, 0 };
    told("of a link", utimensat(AT_FDCWD, at("l"), times, AT_SYMLINK_NOFOLLOW));
    told("lstat", lstat(at("l"), &found));
    say("mtime of the link %ld", (long)found.st_mtim.tv_sec);
    told("stat", stat(at("l"), &found));
    say("mtime of the file is another: %d", found.st_mtim.tv_sec != 77);
    told("mkdir", mkdir(at("d"), 0755));
    told("chmod", chmod(at("d"), 01750));
    told("utimensat", utimensat(AT_FDCWD, at("d"), times, 0));
    show_attributes("d");
    show_mtime("d", 77, 0);
    make("d/in", "");
    told("stat", stat(at("d"), &found));
    say("changed by a new name: %d", found.st_mtim.tv_sec != 77);
    told("chmod of none", chmod(at("none"), 0600));
    told("chown of none", chown(at("none"), 0, 0));
    told("utimensat of none", utimensat(AT_FDCWD, at("none"), times, 0));
    told("set-user-ID", chmod(at("a"), 06755));
    show_attributes("a");
}

static void accesses(void)
{
    make("plain", "");
    make("program", "");
    told("chmod", chmod(at("program"), 0755));
    told("mkdir", mkdir(at("dir"), 0755));
    told("symlink", symlink("none", at("dangling")));
    const char *names[] = { "plain", "program", "dir", "none", "dangling", "plain/x", "none/x" };
    const int modes[] = { F_OK, R_OK, W_OK, X_OK, R_OK | W_OK | X_OK, 64 };
    char what[64];
    for (size_t name = 0; name < sizeof names / sizeof *names; name++) {
        for (size_t mode = 0; mode < sizeof modes / sizeof *modes; mode++) {
            snprintf(what, sizeof what, "access %s %d", names[name], modes[mode]);
            told(what, access(at(names[name]), modes[mode]));
            snprintf(what, sizeof what, "AT_EACCESS %s %d", names[name], modes[mode]);
            told(what, faccessat(AT_FDCWD, at(names[name]), modes[mode], AT_EACCESS));
        }
    }
    told("of the link itself",
        faccessat(AT_FDCWD, at("dangling"), F_OK, AT_SYMLINK_NOFOLLOW));
}

static void inherited_group(void)
{
    struct stat found;
    told("mkdir", mkdir(at("d"), 0755));
    if (geteuid() == 0)
        told("chown", chown(at("d"), (uid_t)-1, 65534));
    told("chmod", chmod(at("d"), 02775));
    told("mkdir", mkdir(at("d/e"), 0755));
    make("d/f", "text");
    told("symlink", symlink("f", at("d/l")));
    const char *names[] = { "d", "d/e", "d/f", "d/l" };
    for (int index = 0; index < 4; index++) {
        told(names[index], lstat(at(names[index]), &found));
        say("mode %o, the group of the directory: %d", (unsigned)found.st_mode,
            found.st_gid == 65534 || geteuid() != 0);
    }
    told("chmod", chmod(at("d/f"), 06755));
    told("chown", chown(at("d/f"), geteuid(), getegid()));
    show_attributes("d/f");
}

static void other_kinds(void)
{
    char bytes[8] = "";
    told("mkfifo", mkfifo(at("p"), 0600));
    show_attributes("p");
    opened("no reader", open(at("p"), O_WRONLY | O_NONBLOCK));
    int from = opened("to read", open(at("p"), O_RDONLY | O_NONBLOCK));
    int to = opened("to write", open(at("p"), O_WRONLY | O_NONBLOCK));
    told("write", write(to, "piped", 5));
    told("read", read(from, bytes, 8));
    told("lseek", lseek(from, 0, SEEK_SET));
    say("\"%.5s\"", bytes);
    close(to);
    close(from);
    told("truncate", truncate(at("p"), 0));
    told("unlink", unlink(at("p")));
    opened("when it has gone", open(at("p"), O_RDONLY | O_NONBLOCK));
    make("sp ace\n\xff\xc3\xa4", "of an odd name");
    int fd = opened("an odd name", open(at("sp ace\n\xff\xc3\xa4"), O_RDONLY));
    show("contents", fd);
    close(fd);
    told("unlink", unlink(at("sp ace\n\xff\xc3\xa4")));
}

static void by_directory(void)
{
    struct stat found;
    char target[16] = "";
    told("mkdir", mkdir(at("d"), 0755));
    told("mkdir again", mkdir(at("d"), 0755));
    int dir = opened("directory", open(at("d"), O_RDONLY | O_DIRECTORY));
    told("mkdirat", mkdirat(dir, "e", 0750));
    told("mkdirat again", mkdirat(dir, "e", 0750));
    int fd = opened("openat", openat(dir, "e/f", CREATE | O_EXCL, 0600));
    put(fd, "by a directory");
    show_stat("fstatat", fstatat(dir, "e/f", &found, 0), &found);
    show_stat("fstatat of itself", fstatat(fd, "", &found, AT_EMPTY_PATH), &found);
    show_stat("fstatat of the directory", fstatat(dir, "", &found, AT_EMPTY_PATH), &found);
    show_stat("fstatat of nothing", fstatat(dir, "", &found, 0), &found);
    opened("below a file", openat(fd, "x", O_RDONLY));
    show_stat("fstatat below a file", fstatat(fd, "x", &found, 0), &found);
    told("symlinkat", symlinkat("e/f", dir, "l"));
    told("readlinkat", readlinkat(dir, "l", target, sizeof target));
    show_stat("through it", fstatat(dir, "l", &found, 0), &found);
    show_stat("the link", fstatat(dir, "l", &found, AT_SYMLINK_NOFOLLOW), &found);
    told("faccessat", faccessat(dir, "e", X_OK, 0));
    told("fchmodat", fchmodat(dir, "e/f", 0640, 0));
    told("unlinkat of a directory", unlinkat(dir, "e", 0));
    told("unlinkat of a full one", unlinkat(dir, "e", AT_REMOVEDIR));
    told("AT_REMOVEDIR of a file", unlinkat(dir, "e/f", AT_REMOVEDIR));
    show_path("d/e/f");
    show_attributes("d/e/f");
    told("renameat", renameat(dir, "e/f", dir, "g"));
    told("linkat", linkat(dir, "g", dir, "h", 0));
    show_fstat("fstat", fd);
    told("unlinkat", unlinkat(dir, "g", 0));
    told("unlinkat", unlinkat(dir, "h", 0));
    show_fstat("fstat", fd);
    told("AT_REMOVEDIR", unlinkat(dir, "e", AT_REMOVEDIR));
    char path[2100];
    snprintf(path, sizeof path, "%s/whole", place);
    close(fd);
    fd = opened("a path from the root", openat(dir, path, CREATE, 0600));
    close(fd);
    show_attributes("whole");
    close(dir);
    opened("by a closed one", openat(dir, "x", CREATE, 0600));
    int bare = open(at("d"), O_PATH);
    fd = opened("by O_PATH", openat(bare, "y", CREATE, 0600));
    put(fd, "y");
    close(fd);
    told("unlinkat", unlinkat(bare, "l", 0));
    told("mkdirat", mkdirat(bare, "z", 0700));
    told("rmdir", rmdir(at("d/z")));
    told("unlink", unlink(at("d/y")));
    told("rmdir", rmdir(at("d")));
    opened("in a removed one", openat(bare, "y", CREATE, 0600));
    told("mkdirat in a removed one", mkdirat(bare, "z", 0700));
    close(bare);
}

static void errors(void)
{
    char bytes[16], name[300], path[2100];
    struct stat found;
    make("f", "text");
    told("mkdir", mkdir(at("d"), 0755));
    opened("directory to write", open(at("d"), O_WRONLY));
    opened("directory to be made", open(at("d"), CREATE, 0644));
    opened("directory to be cut", open(at("d"), O_RDWR | O_TRUNC));
    opened("file as a directory", open(at("f/x"), O_RDONLY));
    opened("file as one, to be made", open(at("f/x"), CREATE, 0644));
    opened("none", open(at("none"), O_RDONLY));
    opened("in none", open(at("none/x"), CREATE, 0644));
    opened("none to be cut", open(at("none"), O_WRONLY | O_TRUNC));
    memset(name, 'n', 256);
    name[256] = 0;
    opened("256 bytes", open(at(name), CREATE, 0644));
    told("mkdir of 256 bytes", mkdir(at(name), 0755));
    show_stat("stat of 256 bytes", stat(at(name), &found), &found);
    told("unlink of 256 bytes", unlink(at(name)));
    told("symlink of 256 bytes", symlink("x", at(name)));
    name[255] = 0;
    int fd = opened("255 bytes", open(at(name), CREATE, 0644));
    close(fd);
    told("unlink of 255 bytes", unlink(at(name)));
    static char deep[5000];
    snprintf(deep, sizeof deep, "%s", is_relative ? "." : place);
    while (strlen(deep) < PATH_MAX)
        strcat(deep, "/././././.");
    opened("a long path", open(deep, O_RDONLY));
    show_stat("stat of a long path", stat(deep, &found), &found);
    opened("a file with a slash", open(at("f/"), O_RDONLY));
    opened("a new one with a slash", open(at("new/"), CREATE, 0644));
    told("mkdir with a slash", mkdir(at("slash/"), 0755));
    told("mkdir of a file with a slash", mkdir(at("f/"), 0755));
    told("unlink with a slash", unlink(at("f/")));
    show_stat("stat with a slash", stat(at("f/"), &found), &found);
    show_stat("directory with a slash", stat(at("d/"), &found), &found);
    told("symlink with a slash", symlink("f", at("ls/")));
    fd = opened("up", open(at("d/../f"), O_RDONLY));
    close(fd);
    opened("up from a file", open(at("f/../f"), O_RDONLY));
    opened("up from none", open(at("none/../f"), O_RDONLY));
    fd = opened("here", open(at("./d/./../././f"), O_RDONLY));
    close(fd);
    fd = opened("slashes", open(at("d//..///f"), O_RDONLY));
    close(fd);
    fd = opened("dots", open(at(".//./f"), O_RDONLY));
    close(fd);
    snprintf(path, sizeof path, "%s/../%s/f", root, strrchr(root, '/') + 1);
    show_stat("out and in", stat(path, &found) ? -1 : 0, &found);
    snprintf(path, sizeof path, "/%s/./f", place);
    fd = opened("another form of the path", open(path, O_RDWR));
    put(fd, "T");
    close(fd);
    show_path("f");
    opened("empty", open("", O_RDONLY));
    opened("empty, made", open("", CREATE, 0644));
    told("mkdir of an empty one", mkdir("", 0755));
    told("unlink of an empty one", unlink(""));
    show_stat("stat of an empty one", stat("", &found), &found);
    told("mkdir of a file", mkdir(at("f"), 0755));
    told("mkdir in none", mkdir(at("none/d"), 0755));
    told("mkdir in a file", mkdir(at("f/d"), 0755));
    told("mkdir of a point", mkdir(at("d/."), 0755));
    told("mkdir of the root", mkdir(root, 0755));
    told("unlink of a directory", unlink(at("d")));
    told("unlink of a point", unlink(at("d/.")));
    told("unlink of none", unlink(at("none")));
    told("unlink in a file", unlink(at("f/x")));
    opened("O_DIRECTORY of a file", open(at("f"), O_RDONLY | O_DIRECTORY));
    opened("O_DIRECTORY of none", open(at("none"), O_RDONLY | O_DIRECTORY));
    fd = opened("directory", open(at("d"), O_RDONLY));
    told("read of it", read(fd, bytes, 1));
    told("write to it", write(fd, bytes, 1));
    close(fd);
    fd = open(at("f"), O_WRONLY);
    told("read of O_WRONLY", read(fd, bytes, 1));
    told("pread of O_WRONLY", pread(fd, bytes, 1, 0));
    told("read of nothing", read(fd, bytes, 0));
    told("close", close(fd));
    told("close again", close(fd));
    fd = open(at("f"), O_RDONLY);
    told("write to O_RDONLY", write(fd, bytes, 1));
    told("pwrite to O_RDONLY", pwrite(fd, bytes, 1, 0));
    told("write of nothing", write(fd, bytes, 0));
    told("ftruncate of O_RDONLY", ftruncate(fd, 0));
    told("fchmod of O_RDONLY", fchmod(fd, 0600));
    close(fd);
    told("read of a closed one", read(fd, bytes, 1));
    told("write to a closed one", write(fd, bytes, 1));
    told("lseek of a closed one", lseek(fd, 0, SEEK_SET));
    show_fstat("fstat of a closed one", fd);
    told("dup of a closed one", dup(fd));
    told("ftruncate of a closed one", ftruncate(fd, 0));
    told("fcntl of a closed one", fcntl(fd, F_GETFL));
    told("read of -1", read(-1, bytes, 1));
    told("close of -1", close(-1));
    told("close of 100000", close(100000));
    show_attributes("f");
}

static int by_name(const struct dirent **left, const struct dirent **right)
{
    return strcmp((*left)->d_name, (*right)->d_name);
}

static void list(const char *name)
{
    struct dirent **found;
    int count = scandir(at(name), &found, NULL, by_name);
    if (count == -1) {
        say("%s: %s", name, error_name(errno));
        return;
    }
    for (int index = 0; index < count; index++) {
        say("%s has %s, a %s", name, found[index]->d_name,
            kind_name(DTTOIF(found[index]->d_type)));
        free(found[index]);
    }
    free(found);
    say("%s: %d", name, count);
}

static void listing(void)
{
    char name[32];
    list(".");
    told("mkdir", mkdir(at("d"), 0755));
    make("f", "text");
    told("symlink", symlink("f", at("l")));
    int fd = create("open");
    list(".");
    told("unlink", unlink(at("open")));
    told("unlink", unlink(at("f")));
    list(".");
    close(fd);
    for (int index = 0; index < 30; index++) {
        snprintf(name, sizeof name, "d/%d", index * 7);
        make(name, "x");
    }
    list("d");
    /* One stream, while names come and go. */
    DIR *dir = opendir(at("d"));
    if (!dir)
        die("opendir");
    int count = 0;
    struct dirent *entry;
    while ((entry = readdir(dir))) {
        if (entry->d_name[0] == '.')
            continue;
        told("unlinkat", unlinkat(dirfd(dir), entry->d_name, 0));
        count++;
    }
    say("removed %d", count);
    rewinddir(dir);
    make("d/new", "new");
    count = 0;
    rewinddir(dir);
    while ((entry = readdir(dir)))
        count++;
    say("now %d", count);
    closedir(dir);
    list("d");
    list("none");
    list("l");
    /* The region's own names in its directory are not told. */
    dir = opendir(root);
    count = 0;
    while (dir && (entry = readdir(dir)))
        count += entry->d_name[0] == '.';
    closedir(dir);
    say("names with a point: %d", count);
}

static void temporary(void)
{
    char path[2100], dir[2100];
    snprintf(path, sizeof path, "%s", at("t-XXXXXX"));
    int fd = mkstemp(path);
    opened("mkstemp", fd);
    put(fd, "temporary");
    show_fstat("fstat", fd);
    int other = opened("by path", open(path, O_RDONLY));
    show("by path", other);
    close(other);
    close(fd);
    told("unlink", unlink(path));
    snprintf(dir, sizeof dir, "%s", at("d-XXXXXX"));
    told("mkdtemp", mkdtemp(dir) ? 0 : -1);
    struct stat found;
    show_stat("stat", stat(dir, &found), &found);
    snprintf(path, sizeof path, "%.2000s/in", dir);
    fd = opened("in it", open(path, CREATE | O_EXCL, 0600));
    close(fd);
    told("rmdir of a full one", rmdir(dir));
    told("remove of a full one", remove(dir));
    told("remove", remove(path));
    told("rmdir of a file", (make("f", ""), rmdir(at("f"))));
    told("remove", remove(dir));
    told("remove again", remove(dir));
    told("rmdir of none", rmdir(at("none")));
    told("rmdir of a point", rmdir(at(".")));
    told("remove of a file", remove(at("f")));
    list(".");
    fd = open(at("."), O_TMPFILE | O_RDWR, 0600);
    if (fd != -1)
        close(fd);
    list(".");
}

static void working_directory(void)
{
    char before[PATH_MAX], now[PATH_MAX], here[PATH_MAX];
    if (!getcwd(before, sizeof before))
        die("getcwd");
    told("mkdir", mkdir(at("d"), 0755));
    told("mkdir", mkdir(at("d/e"), 0755));
    told("chdir", chdir(at("d")));
    if (!getcwd(now, sizeof now))
        die("getcwd");
    snprintf(here, sizeof here, "%s/d", place);
    say("as it should be: %d", strcmp(now, here) == 0);
    int fd = opened("relative", open("f", CREATE | O_EXCL, 0644));
    put(fd, "in d");
    int dir = open("e", O_RDONLY | O_DIRECTORY);
    told("fchdir", fchdir(dir));
    told("rmdir of itself", rmdir("../e"));
    told("getcwd", getcwd(now, sizeof now) ? 0 : -1);
    opened("in a removed directory", open("g", CREATE, 0644));
    told("mkdir in it", mkdir("g", 0755));
    told("fchdir to a file", fchdir(fd));
    told("chdir to a file", chdir(at("none")));
    close(dir);
    close(fd);
    told("chdir", chdir(before));
    show_path("d/f");
    list("d");
}

static void by_statx(void)
{
    struct statx found;
    int fd = create("a");
    put(fd, "text");
    const unsigned basic = STATX_BASIC_STATS;
    told("path", statx(AT_FDCWD, at("a"), 0, basic, &found));
    say("mode %o, nlink %u, size %lu, has all %d", found.stx_mode, found.stx_nlink,
        (unsigned long)found.stx_size, (found.stx_mask & basic) == basic);
    told("descriptor", statx(fd, "", AT_EMPTY_PATH, basic, &found));
    say("mode %o, nlink %u, size %lu, mine %d", found.stx_mode, found.stx_nlink,
        (unsigned long)found.stx_size, found.stx_uid == geteuid());
    uint64_t ino = found.stx_ino;
    struct stat other;
    told("fstat", fstat(fd, &other));
    say("the same file: %d, %d, %d", other.st_ino == ino,
        major(other.st_dev) == found.stx_dev_major, minor(other.st_dev) == found.stx_dev_minor);
    told("kernel's", syscall(SYS_newfstatat, AT_FDCWD, at("a"), &other, 0L));
    say("the same file: %d, %d, %d", other.st_ino == ino,
        major(other.st_dev) == found.stx_dev_major, minor(other.st_dev) == found.stx_dev_minor);
    told("none", statx(AT_FDCWD, at("none"), 0, basic, &found));
    told("nothing", statx(AT_FDCWD, "", 0, basic, &found));
    told("symlink", symlink("a", at("l")));
    told("link", statx(AT_FDCWD, at("l"), AT_SYMLINK_NOFOLLOW, STATX_TYPE, &found));
    say("type %o", found.stx_mode & S_IFMT);
    told("bad flags", statx(AT_FDCWD, at("a"), 0x40000000, basic, &found));
    told("synced", statx(AT_FDCWD, at("a"), AT_STATX_FORCE_SYNC, basic, &found));
    close(fd);
    told("a closed one", statx(fd, "", AT_EMPTY_PATH, basic, &found));
}

/* ---- Threads and signals ---- */

#define THREADS 8

static int thread_failures;
static int shared;

static int first_error;

static void failed(void)
{
    if (!__atomic_exchange_n(&first_error, errno, __ATOMIC_RELAXED))
        fprintf(stderr, "%s: a thread failed: %s\n", step, error_name(errno));
    __atomic_add_fetch(&thread_failures, 1, __ATOMIC_RELAXED);
}

static void *makes_files(void *argument)
{
    long number = (long)argument;
    char name[32], text[64], back[64];
    for (int index = 0; index < 100; index++) {
        snprintf(name, sizeof name, "t-%ld-%d", number, index);
        size_t len = (size_t)snprintf(text, sizeof text, "text %d of thread %ld", index, number);
        int fd = open(at(name), CREATE | O_EXCL, 0644);
        if (fd == -1 || write(fd, text, len) != (ssize_t)len || close(fd))
            failed();
        fd = open(at(name), O_RDONLY);
        if (fd == -1 || read(fd, back, sizeof back) != (ssize_t)len || memcmp(text, back, len))
            failed();
        struct stat found;
        if (fstat(fd, &found) || found.st_size != (off_t)len || close(fd))
            failed();
        if (unlink(at(name)))
            failed();
    }
    return NULL;
}

static void *writes_lines(void *argument)
{
    long number = (long)argument;
    char text[40];
    for (int index = 0; index < 100; index++) {
        size_t len = 5 + (size_t)(index * 7 + number * 3) % 30;
        memset(text, (int)('a' + number), len);
        text[len] = '\n';
        if (write(shared, text, len + 1) != (ssize_t)len + 1)
            failed();
    }
    return NULL;
}

static void with_threads(void *(*work)(void *))
{
    pthread_t threads[THREADS];
    thread_failures = 0;
    for (long index = 0; index < THREADS; index++) {
        if (pthread_create(&threads[index], NULL, work, (void *)index))
            die("pthread_create");
    }
    for (int index = 0; index < THREADS; index++)
        pthread_join(threads[index], NULL);
    say("failures: %d", thread_failures);
}

static void threads_make_files(void)
{
    with_threads(makes_files);
    list(".");
}

static void threads_share(void)
{
    const struct {
        const char *name;
        int flags;
    } cases[] = { { "appended", O_APPEND }, { "plain", 0 } };
    for (int index = 0; index < 2; index++) {
        int lines, torn;
        shared = open(at(cases[index].name), CREATE | cases[index].flags, 0644);
        with_threads(writes_lines);
        told("position", lseek(shared, 0, SEEK_CUR));
        show_fstat(cases[index].name, shared);
        close(shared);
        count_lines(cases[index].name, &lines, &torn);
        say("%s: %d lines, %d torn", cases[index].name, lines, torn);
    }
}

static void *reads_at_once(void *argument)
{
    char bytes[32];
    (void)argument;
    ssize_t got;
    long total = 0;
    while ((got = read(shared, bytes, 7)) > 0)
        total += got;
    if (got == -1)
        failed();
    return (void *)total;
}

/* A position that threads share moves once for each byte. */
static void threads_read(void)
{
    static char bytes[3500];
    fill(bytes, sizeof bytes, 4);
    shared = create("a");
    told("write", write(shared, bytes, sizeof bytes));
    told("lseek", lseek(shared, 0, SEEK_SET));
    pthread_t threads[4];
    thread_failures = 0;
    long sum = 0;
    for (int index = 0; index < 4; index++) {
        if (pthread_create(&threads[index], NULL, reads_at_once, NULL))
            die("pthread_create");
    }
    for (int index = 0; index < 4; index++) {
        void *total;
        pthread_join(threads[index], &total);
        sum += (long)total;
    }
    say("failures: %d, bytes: %ld", thread_failures, sum);
    told("position", lseek(shared, 0, SEEK_CUR));
    close(shared);
}

static int is_over;

/* Reads at positions, and asks for the size, while the descriptor changes hands. */
static void *reads_on(void *argument)
{
    char bytes[8];
    (void)argument;
    while (!__atomic_load_n(&is_over, __ATOMIC_RELAXED)) {
        struct stat found;
        if (pread(shared, bytes, 8, 0) != 8 || memcmp(bytes, "contents", 8))
            failed();
        if (fstat(shared, &found) || found.st_size < 8)
            failed();
        if (lseek(shared, 0, SEEK_END) < 8)
            failed();
    }
    return NULL;
}

static void threads_and_swaps(void)
{
    pthread_t threads[3];
    thread_failures = 0;
    for (int round = 0; round < 20; round++) {
        char name[32];
        snprintf(name, sizeof name, "f-%d", round);
        is_over = 0;
        shared = create(name);
        put(shared, "contents");
        for (int index = 0; index < 3; index++) {
            if (pthread_create(&threads[index], NULL, reads_on, NULL))
                die("pthread_create");
        }
        usleep(1000);
        flock(shared, LOCK_EX | LOCK_NB);
        usleep(1000);
        close(dup(shared));
        __atomic_store_n(&is_over, 1, __ATOMIC_RELAXED);
        for (int index = 0; index < 3; index++)
            pthread_join(threads[index], NULL);
        close(shared);
    }
    say("failures: %d", thread_failures);
}

static void *writes_on(void *argument)
{
    long *count = argument;
    while (!__atomic_load_n(&is_over, __ATOMIC_RELAXED) && *count < 5000) {
        if (write(shared, "line\n", 5) != 5)
            failed();
        ++*count;
        usleep(100);
    }
    return NULL;
}

/* Children are made while another thread writes. */
static void threads_and_forks(void)
{
    char name[32];
    long count = 0;
    pthread_t thread;
    is_over = 0;
    thread_failures = 0;
    shared = create("lines");
    if (pthread_create(&thread, NULL, writes_on, &count))
        die("pthread_create");
    for (int index = 0; index < 8; index++) {
        snprintf(name, sizeof name, "child-%d", index);
        pid_t child = forked();
        if (child == 0) {
            int fd = open(at(name), CREATE | O_EXCL, 0644);
            _exit(fd == -1 || write(fd, name, strlen(name)) != (ssize_t)strlen(name) || close(fd));
        }
        ended("child", child);
        show_path(name);
    }
    __atomic_store_n(&is_over, 1, __ATOMIC_RELAXED);
    pthread_join(thread, NULL);
    close(shared);
    struct stat found;
    told("stat", stat(at("lines"), &found));
    say("failures: %d, all lines: %d", thread_failures, found.st_size == count * 5);
}

static volatile sig_atomic_t handled, mishandled;
static volatile int handler_fd;

static void on_alarm(int signal)
{
    int error = errno;
    (void)signal;
    if (write(handler_fd, "hhhh\n", 5) == 5)
        handled++;
    else
        mishandled++;
    errno = error;
}

static void alarms(int microseconds)
{
    struct itimerval timer = { { 0, microseconds }, { 0, microseconds } };
    setitimer(ITIMER_REAL, &timer, NULL);
}

static void signals(void)
{
    char name[32];
    int lines, torn, failures = 0;
    struct sigaction action = { .sa_handler = on_alarm, .sa_flags = SA_RESTART }, before;
    sigaction(SIGALRM, &action, &before);

    handled = mishandled = 0;
    handler_fd = open(at("handler"), CREATE | O_APPEND, 0644);
    alarms(1000);
    for (int index = 0; index < 5000 && (index < 200 || handled < 30); index++) {
        snprintf(name, sizeof name, "f-%d", index % 50);
        int fd = open(at(name), CREATE | O_TRUNC, 0644);
        if (fd == -1 || write(fd, name, 3) != 3 || close(fd))
            failures++;
    }
    alarms(0);
    close(handler_fd);
    count_lines("handler", &lines, &torn);
    say("own file: enough %d, all lines %d, torn %d, failures %d and %d", handled >= 30,
        lines == handled, torn, failures, (int)mishandled);

    const struct {
        const char *name;
        int flags;
    } cases[] = { { "appended", O_APPEND }, { "plain", 0 } };
    for (int index = 0; index < 2; index++) {
        int mine = 0;
        handled = mishandled = failures = 0;
        handler_fd = open(at(cases[index].name), CREATE | cases[index].flags, 0644);
        alarms(500);
        while (mine < 700 && (mine < 300 || handled < 10)) {
            if (write(handler_fd, "m\n", 2) != 2)
                failures++;
            mine++;
        }
        alarms(0);
        close(handler_fd);
        count_lines(cases[index].name, &lines, &torn);
        say("%s: all lines %d, torn %d, failures %d and %d", cases[index].name,
            lines == mine + handled, torn, failures, (int)mishandled);
    }
    sigaction(SIGALRM, &before, NULL);
}

/* ---- The program ---- */

#define STEP(name) { #name, name }

static const struct {
    const char *name;
    void (*run)(void);
} steps[] = {
    STEP(create_twice), STEP(write_and_seek), STEP(cut), STEP(umasks), STEP(append_two),
    STEP(vectors), STEP(truncated_anew), STEP(growth), STEP(read_through_another),
    STEP(seen_by_the_kernel), STEP(duplicates), STEP(descriptor_flags), STEP(closed_by_loop),
    STEP(closed_by_range), STEP(low_numbers), STEP(bad_buffers), STEP(asynchronous), STEP(sent),
    STEP(fork_shares), STEP(fork_works_on), STEP(vfork_shell), STEP(spawned), STEP(by_shell),
    STEP(exec_of_itself), STEP(limited), STEP(processes_append),
    STEP(as_another_user), STEP(mapping), STEP(streams), STEP(locks), STEP(record_locks),
    STEP(waited_for), STEP(copies), STEP(allocated), STEP(synced), STEP(by_proc), STEP(unlinked),
    STEP(renamed_over), STEP(renamed_above), STEP(links), STEP(hard_links), STEP(attributes),
    STEP(accesses), STEP(inherited_group), STEP(other_kinds), STEP(by_directory), STEP(errors),
    STEP(listing), STEP(temporary), STEP(working_directory), STEP(by_statx),
    STEP(threads_make_files), STEP(threads_share), STEP(threads_read), STEP(threads_and_forks),
    STEP(threads_and_swaps), STEP(signals),
};

/* readlink, as no library sees it. */
static ssize_t kernel_readlink(const char *path, char *target, size_t len)
{
    ssize_t got;
    __asm__ volatile("syscall"
                     : "=a"(got)
                     : "a"(SYS_readlink), "D"(path), "S"(target), "d"(len)
                     : "rcx", "r11", "memory");
    return got;
}

/* A virtual descriptor has the number of another file's: the socket of programs. */
static void check_virtual(const char *when)
{
    char path[2048], target[PATH_MAX];
    snprintf(path, sizeof path, "%s/virtual", root);
    int fd = open(path, CREATE | O_EXCL, 0600);
    if (fd == -1)
        die(path);
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    ssize_t len = kernel_readlink(path, target, sizeof target - 1);
    target[len > 0 ? len : 0] = 0;
    static const char end[] = ".programs";
    size_t ending = sizeof end - 1;
    if (len < (ssize_t)ending || strcmp(target + (size_t)len - ending, end) != 0) {
        fprintf(stderr, "%s: a new file's descriptor is that of %s\n", when, target);
        exit(3);
    }
    close(fd);
    snprintf(path, sizeof path, "%s/virtual", root);
    unlink(path);
}

static int remove_one(const char *path, const struct stat *found, int kind, struct FTW *state)
{
    (void)found;
    (void)kind;
    (void)state;
    return remove(path);
}

int main(int count, char **arguments)
{
    if (count == 4 && strcmp(arguments[1], "--write") == 0) {
        ssize_t len = (ssize_t)strlen(arguments[3]);
        int fd = atoi(arguments[2]);
        if (fcntl(fd, F_GETFD) == -1)
            return errno == EBADF ? 9 : 8;
        return write(fd, arguments[3], (size_t)len) != len;
    }
    if (count < 2 || arguments[1][0] != '/' || strlen(arguments[1]) > 500) {
        fprintf(stderr, "usage: library DIRECTORY [library [STEP]]\n");
        return 2;
    }
    root = arguments[1];
    int is_checked = count > 2 && strcmp(arguments[2], "library") == 0;
    const char *only = count > 3 ? arguments[3] : NULL;
    ssize_t len = readlink("/proc/self/exe", self, sizeof self - 1);
    if (len == -1)
        die("/proc/self/exe");
    setvbuf(stdout, NULL, _IOLBF, 0);
    umask(0022);
    for (is_relative = 0; is_relative < 2; is_relative++) {
        printf("---- %s\n", is_relative ? "relative paths" : "paths from the root");
        for (size_t index = 0; index < sizeof steps / sizeof *steps; index++) {
            if (only && strcmp(only, steps[index].name) != 0)
                continue;
            step = steps[index].name;
            first_error = 0;
            if (is_checked)
                check_virtual(step);
            snprintf(place, sizeof place, "%s/%s-%d", root, step, is_relative);
            if (mkdir(place, 0755))
                die(place);
            if (chdir(is_relative ? place : "/"))
                die("chdir");
            steps[index].run();
            if (chdir("/"))
                die("chdir");
            told("removed", nftw(place, remove_one, 16, FTW_DEPTH | FTW_PHYS));
        }
    }
    if (is_checked)
        check_virtual("at the end");
    printf("---- end\n");
    return 0;
}

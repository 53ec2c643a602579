/*
 * A client of NFSv4 for the tests, over libnfs: takes commands from its input, a line each, and
 * answers each with a line that begins with "ok" or "error".
 *
 * The commands `handle` and those that begin with `h_` send requests of their own, by file handle,
 * as a client does that has kept handles for longer than its server has lived.
 *
 * Usage: client PORT EXPORT UID
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <poll.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <unistd.h>

#include <nfsc/libnfs.h>
#include <nfsc/libnfs-raw.h>
#include <nfsc/libnfs-raw-nfs4.h>

enum { SLOTS = 4, WORDS = 5, BYTES_MAX = 1 << 16, OPS_MAX = 16 };

static struct nfs_context *nfs;
static const char *export;
static struct nfsfh *slots[SLOTS];

static void done(int result)
{
    /* libnfs says ERANGE for what it has no errno for; its text has the error of the protocol. */
    if (result == -ERANGE)
        printf("error %s\n", nfs_get_error(nfs));
    else if (result < 0)
        printf("error %s\n", strerrorname_np(-result));
    else
        printf("ok %d\n", result);
}

/* Requests by handle. */

struct request {
    nfs_argop4 ops[OPS_MAX];
    unsigned count;
    bool answered;
    /* Prints what is wanted of an answer that is a good one. */
    void (*tell)(const nfs_resop4 *last);
};

static void answered(struct rpc_context *rpc, int status, void *data, void *private_data)
{
    struct request *request = private_data;
    const COMPOUND4res *res = data;
    (void)rpc;
    request->answered = true;
    if (status != RPC_STATUS_SUCCESS)
        printf("error RPC\n");
    else if (res->status != NFS4_OK)
        printf("error %s\n", nfsstat4_to_str(res->status));
    else
        request->tell(&res->resarray.resarray_val[res->resarray.resarray_len - 1]);
}

static nfs_argop4 *add(struct request *request, nfs_opnum4 op)
{
    nfs_argop4 *arg = &request->ops[request->count++];
    memset(arg, 0, sizeof *arg);
    arg->argop = op;
    return arg;
}

static void add_handle(struct request *request, const char *hex)
{
    static char bytes[NFS4_FHSIZE];
    unsigned length = 0;
    for (; sscanf(hex, "%2hhx", (unsigned char *)&bytes[length]) == 1; hex += 2)
        length++;
    nfs_argop4 *arg = add(request, OP_PUTFH);
    arg->nfs_argop4_u.opputfh.object.nfs_fh4_len = length;
    arg->nfs_argop4_u.opputfh.object.nfs_fh4_val = bytes;
}

static void add_path(struct request *request, const char *dir, char *path)
{
    static char copy[256];
    char *rest = NULL;
    snprintf(copy, sizeof copy, "%s/%s", dir, path);
    add(request, OP_PUTROOTFH);
    for (char *name = strtok_r(copy, "/", &rest); name; name = strtok_r(NULL, "/", &rest)) {
        nfs_argop4 *arg = add(request, OP_LOOKUP);
        arg->nfs_argop4_u.oplookup.objname.utf8string_len = strlen(name);
        arg->nfs_argop4_u.oplookup.objname.utf8string_val = name;
    }
}

static void send_it(struct request *request)
{
    COMPOUND4args args = { 0 };
    struct rpc_context *rpc = nfs_get_rpc_context(nfs);
    args.argarray.argarray_len = request->count;
    args.argarray.argarray_val = request->ops;
    if (rpc_nfs4_compound_async(rpc, answered, &args, request) != 0) {
        printf("error QUEUE\n");
        return;
    }
    while (!request->answered) {
        struct pollfd pfd = { .fd = rpc_get_fd(rpc), .events = rpc_which_events(rpc) };
        if (poll(&pfd, 1, 1000) < 0 || rpc_service(rpc, pfd.revents) < 0) {
            printf("error POLL\n");
            return;
        }
    }
}

static void tell_handle(const nfs_resop4 *last)
{
    const nfs_fh4 *handle = &last->nfs_resop4_u.opgetfh.GETFH4res_u.resok4.object;
    printf("ok ");
    for (unsigned i = 0; i < handle->nfs_fh4_len; i++)
        printf("%02hhx", (unsigned char)handle->nfs_fh4_val[i]);
    printf("\n");
}

static void tell_read(const nfs_resop4 *last)
{
    const READ4resok *read = &last->nfs_resop4_u.opread.READ4res_u.resok4;
    printf("ok %.*s\n", (int)read->data.data_len, read->data.data_val);
}

static void tell_written(const nfs_resop4 *last)
{
    printf("ok %u\n", last->nfs_resop4_u.opwrite.WRITE4res_u.resok4.count);
}

static void tell_page(const nfs_resop4 *last)
{
    const dirlist4 *list = &last->nfs_resop4_u.opreaddir.READDIR4res_u.resok4.reply;
    uint64_t cookie = 0;
    for (const entry4 *entry = list->entries; entry; entry = entry->nextentry)
        cookie = entry->cookie;
    printf("ok %s %" PRIu64, list->eof ? "end" : "more", cookie);
    for (const entry4 *entry = list->entries; entry; entry = entry->nextentry)
        printf(" %.*s", (int)entry->name.utf8string_len, entry->name.utf8string_val);
    printf("\n");
}

static bool by_handle(char **word)
{
    struct request request = { 0 };
    if (!strcmp(word[0], "handle")) {
        add_path(&request, export, word[1]);
        add(&request, OP_GETFH);
        request.tell = tell_handle;
    } else if (!strcmp(word[0], "h_read")) {
        add_handle(&request, word[1]);
        /* The state of zeros is nobody's: no open goes before. */
        add(&request, OP_READ)->nfs_argop4_u.opread.count = 1000;
        request.tell = tell_read;
    } else if (!strcmp(word[0], "h_write")) {
        add_handle(&request, word[1]);
        WRITE4args *args = &add(&request, OP_WRITE)->nfs_argop4_u.opwrite;
        args->stable = FILE_SYNC4;
        args->data.data_len = strlen(word[2]);
        args->data.data_val = word[2];
        request.tell = tell_written;
    } else if (!strcmp(word[0], "h_list")) {
        add_handle(&request, word[1]);
        READDIR4args *args = &add(&request, OP_READDIR)->nfs_argop4_u.opreaddir;
        args->cookie = strtoull(word[2], NULL, 10);
        args->dircount = args->maxcount = strtoul(word[3], NULL, 10);
        request.tell = tell_page;
    } else {
        return false;
    }
    send_it(&request);
    return true;
}

/* Requests by path, and by open file. */

/* Opens a file, and makes it if it is missing: with O_CREAT, libnfs takes only new files. */
static int open_or_make(const char *path, int flags, struct nfsfh **fh)
{
    int result = nfs_open2(nfs, path, O_CREAT | flags, 0644, fh);
    return result == -EEXIST ? nfs_open(nfs, path, flags, fh) : result;
}

static void put(const char *path, const char *text)
{
    struct nfsfh *fh;
    int result = open_or_make(path, O_TRUNC | O_WRONLY, &fh);
    if (result == 0) {
        result = nfs_write(nfs, fh, strlen(text), text);
        int closed = nfs_close(nfs, fh);
        result = closed < 0 ? closed : result;
    }
    done(result);
}

static void get(struct nfsfh *fh)
{
    static char text[BYTES_MAX];
    int result = nfs_pread(nfs, fh, 0, sizeof text, text);
    if (result < 0)
        done(result);
    else
        printf("ok %.*s\n", result, text);
}

static void get_path(const char *path)
{
    struct nfsfh *fh;
    int result = nfs_open(nfs, path, O_RDONLY, &fh);
    if (result < 0) {
        done(result);
        return;
    }
    get(fh);
    nfs_close(nfs, fh);
}

static void show(const char *path)
{
    struct nfs_stat_64 st;
    int result = nfs_lstat64(nfs, path, &st);
    if (result < 0)
        done(result);
    else
        printf("ok ino=%" PRIu64 " mode=%" PRIo64 " links=%" PRIu64 " uid=%" PRIu64 " gid=%" PRIu64
               " size=%" PRIu64 " mtime=%" PRIu64 "\n",
               st.nfs_ino, st.nfs_mode, st.nfs_nlink, st.nfs_uid, st.nfs_gid, st.nfs_size,
               st.nfs_mtime);
}

static void list(const char *path)
{
    struct nfsdir *dir;
    struct nfsdirent *entry;
    int result = nfs_opendir(nfs, path, &dir);
    if (result < 0) {
        done(result);
        return;
    }
    printf("ok");
    while ((entry = nfs_readdir(nfs, dir)))
        printf(" %s", entry->name);
    printf("\n");
    nfs_closedir(nfs, dir);
}

static void follow(const char *path)
{
    static char text[BYTES_MAX];
    int result = nfs_readlink(nfs, path, text, sizeof text);
    if (result < 0)
        done(result);
    else
        printf("ok %s\n", text);
}

static int touch(const char *path, long seconds)
{
    struct timeval times[2] = { { .tv_sec = seconds }, { .tv_sec = seconds } };
    return nfs_utimes(nfs, path, times);
}

static int write_at(struct nfsfh *fh, const char *start, const char *text)
{
    return nfs_pwrite(nfs, fh, strtoull(start, NULL, 10), strlen(text), text);
}

static int lock(struct nfsfh *fh, short type, const char *start, const char *length)
{
    struct nfs4_flock flock = { .l_type = type, .l_whence = SEEK_SET };
    flock.l_start = strtoull(start, NULL, 10);
    flock.l_len = strtoull(length, NULL, 10);
    return nfs_fcntl(nfs, fh, NFS4_F_SETLK, &flock);
}

static struct nfsfh **slot(const char *word)
{
    return &slots[(unsigned)atoi(word) % SLOTS];
}

static struct nfsfh *opened(const char *word)
{
    struct nfsfh *fh = *slot(word);
    if (!fh)
        exit(3);
    return fh;
}

static void run(char **word)
{
    const char *name = word[0];
    if (by_handle(word))
        return;
    if (!strcmp(name, "put"))
        put(word[1], word[2]);
    else if (!strcmp(name, "get"))
        get_path(word[1]);
    else if (!strcmp(name, "stat"))
        show(word[1]);
    else if (!strcmp(name, "list"))
        list(word[1]);
    else if (!strcmp(name, "readlink"))
        follow(word[1]);
    else if (!strcmp(name, "mkdir"))
        done(nfs_mkdir(nfs, word[1]));
    else if (!strcmp(name, "rmdir"))
        done(nfs_rmdir(nfs, word[1]));
    else if (!strcmp(name, "unlink"))
        done(nfs_unlink(nfs, word[1]));
    else if (!strcmp(name, "rename"))
        done(nfs_rename(nfs, word[1], word[2]));
    else if (!strcmp(name, "link"))
        done(nfs_link(nfs, word[1], word[2]));
    else if (!strcmp(name, "symlink"))
        done(nfs_symlink(nfs, word[1], word[2]));
    else if (!strcmp(name, "chmod"))
        done(nfs_chmod(nfs, word[1], (int)strtol(word[2], NULL, 8)));
    else if (!strcmp(name, "chown"))
        done(nfs_chown(nfs, word[1], atoi(word[2]), atoi(word[3])));
    else if (!strcmp(name, "truncate"))
        done(nfs_truncate(nfs, word[1], strtoull(word[2], NULL, 10)));
    else if (!strcmp(name, "touch"))
        done(touch(word[1], atol(word[2])));
    else if (!strcmp(name, "open"))
        done(open_or_make(word[2], O_RDWR, slot(word[1])));
    else if (!strcmp(name, "write"))
        done(write_at(opened(word[1]), word[2], word[3]));
    else if (!strcmp(name, "read"))
        get(opened(word[1]));
    else if (!strcmp(name, "sync"))
        done(nfs_fsync(nfs, opened(word[1])));
    else if (!strcmp(name, "lock"))
        done(lock(opened(word[1]), F_WRLCK, word[2], word[3]));
    else if (!strcmp(name, "unlock"))
        done(lock(opened(word[1]), F_UNLCK, word[2], word[3]));
    else if (!strcmp(name, "close"))
        done(nfs_close(nfs, opened(word[1])));
    else
        printf("error COMMAND\n");
}

static void split(char *line, char **word)
{
    unsigned count = 0;
    char *rest = NULL;
    for (char *w = strtok_r(line, " \n", &rest); w; w = strtok_r(NULL, " \n", &rest))
        if (count < WORDS)
            word[count++] = w;
}

int main(int argc, char **argv)
{
    static char line[BYTES_MAX];
    char url[256];
    if (argc != 4 || !(nfs = nfs_init_context()))
        return 2;
    export = argv[2];
    nfs_set_uid(nfs, atoi(argv[3]));
    nfs_set_gid(nfs, atoi(argv[3]));
    snprintf(url, sizeof url, "nfs://127.0.0.1%s?version=4&nfsport=%s", export, argv[1]);
    /* Version and port get into the context by this. */
    struct nfs_url *parsed = nfs_parse_url_dir(nfs, url);
    if (!parsed || nfs_mount(nfs, parsed->server, parsed->path) != 0) {
        printf("error %s\n", nfs_get_error(nfs));
        return 1;
    }
    printf("ok mounted\n");
    fflush(stdout);
    while (fgets(line, sizeof line, stdin)) {
        char *word[WORDS] = { "", "", "", "", "" };
        split(line, word);
        /* A command that never ends shall not keep the test for ever. */
        alarm(120);
        run(word);
        alarm(0);
        fflush(stdout);
    }
    nfs_destroy_url(parsed);
    nfs_destroy_context(nfs);
    return 0;
}

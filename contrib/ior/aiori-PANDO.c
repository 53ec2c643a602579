/*
 * Abstract I/O interface for the Pando file system, through libpando.
 *
 * Each process has a session of its own, opened in initialize. Without options the servers are
 * those of the environment's PANDO_SERVERS, and the token is where libpando looks for one.
 */

#ifdef HAVE_CONFIG_H
#include "config.h"
#endif

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include <pando.h>

#include "aiori.h"
#include "ior.h"
#include "iordef.h"
#include "utilities.h"

/* Options of the backend. */
struct pando_ior_options {
        char *servers; /* HOST:PORT, or several with commas between them */
        char *token;   /* file with the token */
};

static struct pando_fs *session;
static aiori_xfer_hint_t *hints;

static const char *Text(int64_t error)
{
        const char *text = pando_last_error();
        return text[0] != '\0' ? text : pando_strerror((int)error);
}

/* For functions of which callers expect -1 and errno. */
static int Result(int64_t result)
{
        if (result >= 0)
                return 0;
        errno = (int)-result;
        return -1;
}

static bool DryRun(void)
{
        return hints != NULL && hints->dryRun;
}

static option_help *PANDO_Options(aiori_mod_opt_t **init_backend_options,
                                  aiori_mod_opt_t *init_values)
{
        struct pando_ior_options *o = calloc(1, sizeof *o);

        if (init_values != NULL)
                memcpy(o, init_values, sizeof *o);
        *init_backend_options = (aiori_mod_opt_t *)o;

        option_help h[] = {
                {0, "pando.servers", "servers, HOST:PORT[,HOST:PORT...] [PANDO_SERVERS]",
                 OPTION_OPTIONAL_ARGUMENT, 's', &o->servers},
                {0, "pando.token", "file with the token [PANDO_TOKEN_FILE]",
                 OPTION_OPTIONAL_ARGUMENT, 's', &o->token},
                LAST_OPTION
        };
        option_help *help = malloc(sizeof h);
        memcpy(help, h, sizeof h);
        return help;
}

static int PANDO_CheckParams(aiori_mod_opt_t *options)
{
        struct pando_ior_options *o = (struct pando_ior_options *)options;

        if (o->servers == NULL && getenv("PANDO_SERVERS") == NULL)
                ERR("--pando.servers or PANDO_SERVERS must say where the servers are");
        return 0;
}

static void PANDO_Initialize(aiori_mod_opt_t *options)
{
        struct pando_ior_options *o = (struct pando_ior_options *)options;
        const char *servers = o->servers != NULL ? o->servers : getenv("PANDO_SERVERS");

        int error = pando_connect(servers, o->token, NULL, &session);
        if (error < 0)
                ERRF("pando_connect(%s) failed: %s", servers, Text(error));
}

static void PANDO_Finalize(aiori_mod_opt_t *options)
{
        (void)options;
        int error = pando_disconnect(session);
        if (error < 0)
                WARNF("pando_disconnect failed: %s", Text(error));
        session = NULL;
}

static void PANDO_XferHints(aiori_xfer_hint_t *params)
{
        hints = params;
}

static int OpenFlags(int ior_flags)
{
        int flags = 0;

        if (ior_flags & IOR_RDONLY)
                flags |= O_RDONLY;
        if (ior_flags & IOR_WRONLY)
                flags |= O_WRONLY;
        if (ior_flags & IOR_RDWR)
                flags |= O_RDWR;
        if (ior_flags & IOR_APPEND)
                flags |= O_APPEND;
        if (ior_flags & IOR_CREAT)
                flags |= O_CREAT;
        if (ior_flags & IOR_TRUNC)
                flags |= O_TRUNC;
        if (ior_flags & IOR_EXCL)
                flags |= O_EXCL;
        return flags;
}

static aiori_fd_t *PANDO_Open(char *path, int ior_flags, aiori_mod_opt_t *options)
{
        struct pando_file *file = NULL;
        (void)options;

        if (DryRun())
                return NULL;
        int error = pando_open(session, path, OpenFlags(ior_flags), 0664, &file);
        if (error < 0)
                ERRF("pando_open(%s) failed: %s", path, Text(error));
        return (aiori_fd_t *)file;
}

static aiori_fd_t *PANDO_Create(char *path, int ior_flags, aiori_mod_opt_t *options)
{
        return PANDO_Open(path, ior_flags | IOR_CREAT, options);
}

static int PANDO_Mknod(char *path)
{
        return DryRun() ? 0 : Result(pando_create(session, path, 0664));
}

static IOR_offset_t PANDO_Xfer(int access, aiori_fd_t *fd, IOR_size_t *buffer, IOR_offset_t length,
                               IOR_offset_t offset, aiori_mod_opt_t *options)
{
        struct pando_file *file = (struct pando_file *)fd;
        int64_t count;
        (void)options;

        if (DryRun())
                return length;
        if (access == WRITE) {
                count = pando_pwrite(file, buffer, (size_t)length, offset);
                if (count >= 0 && hints != NULL && hints->fsyncPerWrite) {
                        int error = pando_fsync(file);
                        count = error < 0 ? error : count;
                }
        } else {
                count = pando_pread(file, buffer, (size_t)length, offset);
        }
        if (count < 0) {
                WARNF("%s of %lld bytes at %lld failed: %s", access == WRITE ? "write" : "read",
                      length, offset, Text(count));
                return -1;
        }
        return count;
}

static void PANDO_Close(aiori_fd_t *fd, aiori_mod_opt_t *options)
{
        (void)options;
        if (DryRun())
                return;
        int error = pando_close((struct pando_file *)fd);
        if (error < 0)
                ERRF("pando_close failed: %s", Text(error));
}

static void PANDO_Fsync(aiori_fd_t *fd, aiori_mod_opt_t *options)
{
        (void)options;
        if (DryRun())
                return;
        int error = pando_fsync((struct pando_file *)fd);
        if (error < 0)
                WARNF("pando_fsync failed: %s", Text(error));
}

static void PANDO_Sync(aiori_mod_opt_t *options)
{
        (void)options;
        if (DryRun())
                return;
        int error = pando_sync(session);
        if (error < 0)
                WARNF("pando_sync failed: %s", Text(error));
}

static void PANDO_Remove(char *path, aiori_mod_opt_t *options)
{
        (void)options;
        if (DryRun())
                return;
        int error = pando_unlink(session, path);
        if (error < 0)
                WARNF("pando_unlink(%s) failed: %s", path, Text(error));
}

static int PANDO_Rename(const char *from, const char *to, aiori_mod_opt_t *options)
{
        (void)options;
        return DryRun() ? 0 : Result(pando_rename(session, from, to, 0));
}

static int PANDO_Mkdir(const char *path, mode_t mode, aiori_mod_opt_t *options)
{
        (void)options;
        return DryRun() ? 0 : Result(pando_mkdir(session, path, mode));
}

static int PANDO_Rmdir(const char *path, aiori_mod_opt_t *options)
{
        (void)options;
        return DryRun() ? 0 : Result(pando_rmdir(session, path));
}

static int PANDO_Access(const char *path, int mode, aiori_mod_opt_t *options)
{
        (void)options;
        return DryRun() ? 0 : Result(pando_access(session, path, mode));
}

static int PANDO_Stat(const char *path, struct stat *buf, aiori_mod_opt_t *options)
{
        struct pando_stat st;
        (void)options;

        if (DryRun())
                return 0;
        int error = pando_stat(session, path, &st);
        if (error < 0)
                return Result(error);
        memset(buf, 0, sizeof *buf);
        buf->st_ino = st.ino;
        buf->st_mode = st.mode;
        buf->st_nlink = st.nlink;
        buf->st_uid = st.uid;
        buf->st_gid = st.gid;
        buf->st_rdev = st.rdev;
        buf->st_size = (off_t)st.size;
        buf->st_blksize = st.blksize;
        buf->st_blocks = (blkcnt_t)((st.allocated + 511) / 512);
        buf->st_atime = st.atime.sec;
        buf->st_mtime = st.mtime.sec;
        buf->st_ctime = st.ctime.sec;
        return 0;
}

static int PANDO_Statfs(const char *path, ior_aiori_statfs_t *buf, aiori_mod_opt_t *options)
{
        struct pando_statfs st;
        (void)path;
        (void)options;

        if (DryRun())
                return 0;
        int error = pando_statfs(session, &st);
        if (error < 0)
                return Result(error);
        buf->f_bsize = 4096;
        buf->f_blocks = st.bytes / buf->f_bsize;
        buf->f_bfree = st.bytes_free / buf->f_bsize;
        buf->f_bavail = buf->f_bfree;
        buf->f_files = st.files + st.files_free;
        buf->f_ffree = st.files_free;
        return 0;
}

static IOR_offset_t PANDO_GetFileSize(aiori_mod_opt_t *options, char *path)
{
        struct pando_stat st;
        (void)options;

        if (DryRun())
                return 0;
        int error = pando_stat(session, path, &st);
        if (error < 0) {
                WARNF("pando_stat(%s) failed: %s", path, Text(error));
                return -1;
        }
        return (IOR_offset_t)st.size;
}

static char *PANDO_GetVersion(void)
{
        return (char *)pando_version();
}

ior_aiori_t pando_aiori = {
        .name = "PANDO",
        .name_legacy = NULL,
        .create = PANDO_Create,
        .mknod = PANDO_Mknod,
        .open = PANDO_Open,
        .xfer_hints = PANDO_XferHints,
        .xfer = PANDO_Xfer,
        .close = PANDO_Close,
        .remove = PANDO_Remove,
        .get_version = PANDO_GetVersion,
        .fsync = PANDO_Fsync,
        .sync = PANDO_Sync,
        .get_file_size = PANDO_GetFileSize,
        .statfs = PANDO_Statfs,
        .mkdir = PANDO_Mkdir,
        .rmdir = PANDO_Rmdir,
        .rename = PANDO_Rename,
        .access = PANDO_Access,
        .stat = PANDO_Stat,
        .initialize = PANDO_Initialize,
        .finalize = PANDO_Finalize,
        .get_options = PANDO_Options,
        .check_params = PANDO_CheckParams,
        .enable_mdtest = true,
};

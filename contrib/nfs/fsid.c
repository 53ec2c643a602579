/*
 * Gives FUSE mounts an identity that stays, in the eyes of nfs-ganesha.
 *
 * FSAL_VFS puts the `f_fsid` of statfs(2) into each file handle, and the number of the device where
 * that is 0. Linux has 0 for every FUSE mount, and the number of the device is another one when the
 * mount was made again after others. Then clients get ESTALE for all that they had. This library is
 * preloaded into ganesha; its `f_fsid` of a FUSE mount is a hash of the path of the mount point.
 *
 *     cc -shared -fPIC -O2 -o pando-fsid.so fsid.c
 *     LD_PRELOAD=$PWD/pando-fsid.so ganesha.nfsd ...
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stdint.h>
#include <sys/vfs.h>

enum { FUSE_SUPER_MAGIC = 0x65735546 };

/* FNV-1a, which every build and every machine computes alike. */
static uint64_t hash(const char *path)
{
    uint64_t hash = UINT64_C(0xcbf29ce484222325);
    for (; *path; path++)
        hash = (hash ^ (unsigned char)*path) * UINT64_C(0x100000001b3);
    return hash;
}

int statfs64(const char *path, struct statfs64 *buf)
{
    int (*next)(const char *, struct statfs64 *) =
        (int (*)(const char *, struct statfs64 *))dlsym(RTLD_NEXT, "statfs64");
    if (!next) {
        errno = ENOSYS;
        return -1;
    }
    int result = next(path, buf);
    if (result == 0 && buf->f_type == FUSE_SUPER_MAGIC && buf->f_fsid.__val[0] == 0
        && buf->f_fsid.__val[1] == 0) {
        uint64_t id = hash(path);
        buf->f_fsid.__val[0] = (int)(id >> 32);
        buf->f_fsid.__val[1] = (int)id;
    }
    return result;
}

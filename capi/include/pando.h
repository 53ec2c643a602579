/*
 * libpando: the client of the Pando file system for C.
 *
 * Functions return 0, a count, or a negative errno (see errno(3)); nothing sets errno itself.
 * pando_last_error() has a text for people. Texts end with a zero byte; paths and names are bytes
 * of any encoding, absolute or relative to the root of the session, which is the same. A pointer
 * that is null where something is needed gives -EFAULT, a handle that was closed -EBADF.
 *
 * All functions may be called by several threads at the same time, with the same handles. After a
 * fork(2) the child connects anew; with the parent's handles its calls return -EBADF.
 *
 * See libpando(3). This file is made from the library's sources; change those.
 */


#ifndef PANDO_H
#define PANDO_H



#include <stddef.h>
#include <stdint.h>

/**
 * Version of this header: calls of later versions of the library mean the same as long as the first
 * number does not change.
 */
#define PANDO_VERSION_MAJOR 0

/**
 * See PANDO_VERSION_MAJOR.
 */
#define PANDO_VERSION_MINOR 1

/**
 * For pando_fallocate(): change nothing but what is stored; the file does not get longer.
 */
#define PANDO_FALLOC_KEEP_SIZE 1

/**
 * For pando_fallocate(), with PANDO_FALLOC_KEEP_SIZE: make the range a hole, which reads as zeros.
 */
#define PANDO_FALLOC_PUNCH_HOLE 2

/**
 * For pando_fallocate(): make the range zeros.
 */
#define PANDO_FALLOC_ZERO_RANGE 16

/**
 * No lock: unlock.
 */
#define PANDO_LOCK_NONE 0

/**
 * A lock that others may have, too; for a range, the file must be open for reading.
 */
#define PANDO_LOCK_SHARED 1

/**
 * A lock of one; for a range, the file must be open for writing.
 */
#define PANDO_LOCK_EXCLUSIVE 2

/**
 * Encrypt connections to other machines, as the token says (the default).
 */
#define PANDO_TLS_ELSEWHERE 0

/**
 * Encrypt all connections.
 */
#define PANDO_TLS_ALWAYS 1

/**
 * Encrypt nothing: the token and all data can be read on the way.
 */
#define PANDO_TLS_NEVER 2

/**
 * A read brings the access time up to date if it is older than the other times, or than a day.
 */
#define PANDO_ATIME_RELATIVE 0

/**
 * Every read brings the access time up to date.
 */
#define PANDO_ATIME_ALWAYS 1

/**
 * No read changes the access time.
 */
#define PANDO_ATIME_NEVER 2

/**
 * For pando_rename(): fail with -EEXIST when the new name is taken.
 */
#define PANDO_RENAME_NOREPLACE 1

/**
 * For pando_rename(): both names must exist, and change places.
 */
#define PANDO_RENAME_EXCHANGE 2

/**
 * For pando_chown() and pando_utimens(): a symbolic link itself, instead of what it points to.
 */
#define PANDO_NOFOLLOW 1

/**
 * Stays as it is, as an owner or group of pando_chown().
 */
#define PANDO_ID_SAME 0xffffffffu

/**
 * Nanoseconds of a pando_timespec in pando_utimens(): the present time of the server.
 */
#define PANDO_UTIME_NOW 1073741823

/**
 * Nanoseconds of a pando_timespec in pando_utimens(): leave this time as it is.
 */
#define PANDO_UTIME_OMIT 1073741822

/**
 * Longest name of an entry, in bytes.
 */
#define PANDO_NAME_MAX 255

/**
 * For pando_setxattr(): -EEXIST when the attribute is there.
 */
#define PANDO_XATTR_CREATE 1

/**
 * For pando_setxattr(): -ENODATA when the attribute is not there.
 */
#define PANDO_XATTR_REPLACE 2

/**
 * Operations that are under way at the same time.
 */
struct pando_batch;

/**
 * A directory that is being listed.
 */
struct pando_dir;

/**
 * An open file.
 */
struct pando_file;

/**
 * A session with a file system, acting as one user.
 */
struct pando_fs;

/**
 * How to connect.
 */
struct pando_options;

/**
 * Result of an operation of a batch.
 */
struct pando_completion {
    /**
     * The number that was given with the operation.
     */
    uint64_t user_data;
    /**
     * Result as the function of the same name returns it: at least 0, or a negative errno.
     */
    int64_t result;
};

/**
 * A point in time, since 1970.
 */
struct pando_timespec {
    /**
     * Whole seconds; negative before 1970.
     */
    int64_t sec;
    /**
     * Nanoseconds from 0 to 999999999.
     */
    uint32_t nsec;
    /**
     * Zero.
     */
    uint32_t reserved;
};

/**
 * Attributes of a file, directory or other inode.
 */
struct pando_stat {
    /**
     * Inode number.
     */
    uint64_t ino;
    /**
     * Bytes; of a directory its entries; of a symbolic link the length of its target.
     */
    uint64_t size;
    /**
     * Bytes that are really stored.
     */
    uint64_t allocated;
    /**
     * Type and permission bits, as st_mode of stat(2).
     */
    uint32_t mode;
    /**
     * Number of names; of a directory 2 and one for each subdirectory.
     */
    uint32_t nlink;
    /**
     * Owner.
     */
    uint32_t uid;
    /**
     * Group.
     */
    uint32_t gid;
    /**
     * Device number of a special file, as Linux encodes it.
     */
    uint32_t rdev;
    /**
     * Bytes to read or write at once for speed.
     */
    uint32_t blksize;
    /**
     * Last access.
     */
    struct pando_timespec atime;
    /**
     * Last change of contents.
     */
    struct pando_timespec mtime;
    /**
     * Last change of attributes.
     */
    struct pando_timespec ctime;
    /**
     * Birth.
     */
    struct pando_timespec btime;
    /**
     * Zero.
     */
    uint64_t reserved[4];
};

/**
 * An entry of a directory, with its attributes.
 */
struct pando_dirent {
    /**
     * Inode number.
     */
    uint64_t ino;
    /**
     * Type bits of st_mode; 0 when the server that knows does not answer.
     */
    uint32_t type;
    /**
     * 1 when `stat` is filled in; 0 for a directory of another server: pando_lstat() asks there.
     */
    uint32_t has_stat;
    /**
     * Attributes, if `has_stat` is 1.
     */
    struct pando_stat stat;
    /**
     * Name, with a zero byte at its end.
     */
    char name[256];
};

/**
 * A lock of a range of bytes that conflicts with another.
 */
struct pando_lock {
    /**
     * First byte.
     */
    uint64_t start;
    /**
     * Number of bytes; 0: to the end of the file, however long it becomes.
     */
    uint64_t len;
    /**
     * Process that holds the lock; 0 when it is one of another client.
     */
    uint32_t pid;
    /**
     * PANDO_LOCK_SHARED, PANDO_LOCK_EXCLUSIVE, or PANDO_LOCK_NONE.
     */
    int32_t mode;
};

/**
 * Space and inodes of the file system.
 */
struct pando_statfs {
    /**
     * Bytes in total.
     */
    uint64_t bytes;
    /**
     * Bytes that are free.
     */
    uint64_t bytes_free;
    /**
     * Inodes in use.
     */
    uint64_t files;
    /**
     * Inodes that could still be made.
     */
    uint64_t files_free;
    /**
     * Longest name of an entry, in bytes.
     */
    uint64_t name_max;
    /**
     * Zero.
     */
    uint64_t reserved[3];
};

#ifdef __cplusplus
extern "C" {
#endif /* __cplusplus */

/**
 * Version of the library that is linked, for people to read.
 */
const char *pando_version(void);

/**
 * Makes a batch and puts it to `batch`. At most `in_flight` operations are under way at once; 0
 * stands for 128. Threads may share a batch; each completion goes to one of them.
 */
int pando_batch_new(struct pando_fs *fs, uint32_t in_flight, struct pando_batch **batch);

/**
 * Starts everything that was added since the last submit; returns how many operations. Does not
 * wait: operations go on while a thread waits for completions or is in any other call of the
 * session, and otherwise in a thread of the library.
 */
int64_t pando_batch_submit(struct pando_batch *batch);

/**
 * Puts up to `max` completions, in the order in which operations ended, to `completions`; returns
 * how many. Waits until there are `min` (at least 1) or nothing is under way any more: then 0 means
 * that all are done. Waits for `timeout_ms` milliseconds at most; a negative number is forever, and
 * 0 does not wait.
 */
int64_t pando_batch_wait(struct pando_batch *batch,
                         struct pando_completion *completions,
                         size_t max,
                         size_t min,
                         int64_t timeout_ms);

/**
 * Number of operations that were submitted and whose completions were not returned yet.
 */
int64_t pando_batch_pending(struct pando_batch *batch);

/**
 * An eventfd that is readable while completions are there, for poll(2) and event loops. The batch
 * keeps it; only pando_batch_wait(), with a time-out of 0, reads it. From now on a thread of the
 * library takes operations further while the program waits elsewhere.
 */
int pando_batch_fd(struct pando_batch *batch);

/**
 * Waits for what is under way, since it writes to memory of the program, and frees the batch. What
 * was added and not submitted, or has not begun, is dropped. Files that operations have opened are
 * the program's to close.
 */
int pando_batch_free(struct pando_batch *batch);

/**
 * Attributes to `stat`, as pando_stat().
 */
int pando_batch_stat(struct pando_batch *batch,
                     const char *path,
                     struct pando_stat *stat,
                     uint64_t user_data);

/**
 * Attributes to `stat`, as pando_lstat().
 */
int pando_batch_lstat(struct pando_batch *batch,
                      const char *path,
                      struct pando_stat *stat,
                      uint64_t user_data);

/**
 * Like pando_create().
 */
int pando_batch_create(struct pando_batch *batch,
                       const char *path,
                       uint32_t mode,
                       uint64_t user_data);

/**
 * Like pando_mkdir().
 */
int pando_batch_mkdir(struct pando_batch *batch,
                      const char *path,
                      uint32_t mode,
                      uint64_t user_data);

/**
 * Like pando_rmdir().
 */
int pando_batch_rmdir(struct pando_batch *batch, const char *path, uint64_t user_data);

/**
 * Like pando_unlink().
 */
int pando_batch_unlink(struct pando_batch *batch, const char *path, uint64_t user_data);

/**
 * Like pando_rename().
 */
int pando_batch_rename(struct pando_batch *batch,
                       const char *from,
                       const char *to,
                       unsigned int flags,
                       uint64_t user_data);

/**
 * Like pando_link().
 */
int pando_batch_link(struct pando_batch *batch,
                     const char *existing,
                     const char *path,
                     uint64_t user_data);

/**
 * Like pando_symlink().
 */
int pando_batch_symlink(struct pando_batch *batch,
                        const char *target,
                        const char *path,
                        uint64_t user_data);

/**
 * Like pando_chmod().
 */
int pando_batch_chmod(struct pando_batch *batch,
                      const char *path,
                      uint32_t mode,
                      uint64_t user_data);

/**
 * Like pando_chown().
 */
int pando_batch_chown(struct pando_batch *batch,
                      const char *path,
                      uint32_t uid,
                      uint32_t gid,
                      int flags,
                      uint64_t user_data);

/**
 * Like pando_utimens(); `times` is read at once.
 */
int pando_batch_utimens(struct pando_batch *batch,
                        const char *path,
                        const struct pando_timespec *times,
                        int flags,
                        uint64_t user_data);

/**
 * Like pando_truncate().
 */
int pando_batch_truncate(struct pando_batch *batch,
                         const char *path,
                         uint64_t size,
                         uint64_t user_data);

/**
 * Like pando_getxattr().
 */
int pando_batch_getxattr(struct pando_batch *batch,
                         const char *path,
                         const char *name,
                         void *value,
                         size_t size,
                         uint64_t user_data);

/**
 * Like pando_setxattr(); `value` is read at once.
 */
int pando_batch_setxattr(struct pando_batch *batch,
                         const char *path,
                         const char *name,
                         const void *value,
                         size_t size,
                         int flags,
                         uint64_t user_data);

/**
 * Like pando_read_file().
 */
int pando_batch_read_file(struct pando_batch *batch,
                          const char *path,
                          void *buffer,
                          size_t size,
                          uint64_t user_data);

/**
 * Like pando_write_file().
 */
int pando_batch_write_file(struct pando_batch *batch,
                           const char *path,
                           uint32_t mode,
                           const void *contents,
                           size_t size,
                           uint64_t user_data);

/**
 * Like pando_open(); `file` is written when the operation succeeds.
 */
int pando_batch_open(struct pando_batch *batch,
                     const char *path,
                     int flags,
                     uint32_t mode,
                     struct pando_file **file,
                     uint64_t user_data);

/**
 * Like pando_close(). The handle is free at once; operations that use it and are under way end
 * first or see their own errors.
 */
int pando_batch_close(struct pando_batch *batch, struct pando_file *file, uint64_t user_data);

/**
 * Like pando_pread().
 */
int pando_batch_pread(struct pando_batch *batch,
                      struct pando_file *file,
                      void *buffer,
                      size_t size,
                      int64_t offset,
                      uint64_t user_data);

/**
 * Like pando_pwrite().
 */
int pando_batch_pwrite(struct pando_batch *batch,
                       struct pando_file *file,
                       const void *buffer,
                       size_t size,
                       int64_t offset,
                       uint64_t user_data);

/**
 * Like pando_fsync().
 */
int pando_batch_fsync(struct pando_batch *batch, struct pando_file *file, uint64_t user_data);

/**
 * Opens a session at one of `addresses` (HOST:PORT, or several with commas between them) and puts
 * it to `fs`.
 *
 * `token_file` is the file with the token; null: the file that the environment's PANDO_TOKEN_FILE
 * names, or else ~/.config/pando/token. `options` may be null. Waits for a server until the
 * time-out for connecting, then -ETIMEDOUT; -EACCES when the servers refuse the token.
 *
 * A child of fork(2) cannot use the session: its calls return -EBADF. It connects anew.
 */
int pando_connect(const char *addresses,
                  const char *token_file,
                  struct pando_options *options,
                  struct pando_fs **fs);

/**
 * Begins to list a directory and puts the listing to `dir`. As opendir(3).
 */
int pando_opendir(struct pando_fs *fs, const char *path, struct pando_dir **dir);

/**
 * Puts the next entry to `entry` and returns 1; 0 at the end. `.` and `..` are not among them.
 *
 * What is made or removed meanwhile may be there or not; everything else is there exactly once.
 * Threads that list the same directory get different entries.
 */
int pando_readdir(struct pando_dir *dir, struct pando_dirent *entry);

/**
 * Frees a listing. As closedir(3).
 */
int pando_closedir(struct pando_dir *dir);

/**
 * Text of the last failure in this thread, for people to read; empty when there was none.
 *
 * The text stays until this thread calls pando_last_error again, or ends. A call that succeeds
 * leaves it as it is.
 */
const char *pando_last_error(void);

/**
 * Describes an errno, negative as functions return it or positive.
 *
 * The text stays until this thread calls pando_strerror again, or ends.
 */
const char *pando_strerror(int error);

/**
 * Opens a file and puts it to `file`. `flags` are those of open(2): one of O_RDONLY, O_WRONLY and
 * O_RDWR, with O_CREAT, O_EXCL, O_TRUNC, O_APPEND, O_SYNC, O_DSYNC, O_NOFOLLOW and O_TMPFILE;
 * O_CLOEXEC, O_NONBLOCK, O_NOCTTY, O_NOATIME, O_DIRECT and O_LARGEFILE change nothing. `mode` is
 * for a file that is made.
 *
 * -EISDIR for a directory, which pando_opendir() opens; -EINVAL for other flags. Special files
 * cannot be opened (-EOPNOTSUPP).
 */
int pando_open(struct pando_fs *fs,
               const char *path,
               int flags,
               uint32_t mode,
               struct pando_file **file);

/**
 * Sends what was written, gives back the file's locks and frees the handle, also when it returns
 * an error: that of sending what was written, if no call has returned it yet. As close(2), but
 * other clients that open the file afterwards see what was written.
 *
 * Operations on the file that other threads or batches have under way end on their own; what they
 * write is sent later. A program that wants to know of that waits for them first.
 */
int pando_close(struct pando_file *file);

/**
 * Reads up to `size` bytes from `offset`; returns how many, fewer only at the end of the file.
 */
int64_t pando_pread(struct pando_file *file, void *buffer, size_t size, int64_t offset);

/**
 * Writes all of `size` bytes at `offset`, or at the end with O_APPEND; returns `size`. Others see
 * it after pando_fsync(), pando_flush() or pando_close().
 */
int64_t pando_pwrite(struct pando_file *file, const void *buffer, size_t size, int64_t offset);

/**
 * Reads as pando_pread() does, from where the last read or write ended.
 */
int64_t pando_read(struct pando_file *file, void *buffer, size_t size);

/**
 * Writes as pando_pwrite() does, from where the last read or write ended.
 */
int64_t pando_write(struct pando_file *file, const void *buffer, size_t size);

/**
 * Sets where the next read or write begins and returns it. `whence` is SEEK_SET, SEEK_CUR,
 * SEEK_END, SEEK_DATA or SEEK_HOLE. As lseek(2).
 */
int64_t pando_lseek(struct pando_file *file, int64_t offset, int whence);

/**
 * Attributes of an open file. As fstat(2).
 */
int pando_fstat(struct pando_file *file, struct pando_stat *stat);

/**
 * Cuts an open file, or makes it longer with zeros. As ftruncate(2).
 */
int pando_ftruncate(struct pando_file *file, uint64_t size);

/**
 * Sets permission bits of an open file. As fchmod(2).
 */
int pando_fchmod(struct pando_file *file, uint32_t mode);

/**
 * Sets owner and group of an open file; PANDO_ID_SAME leaves one as it is. As fchown(2).
 */
int pando_fchown(struct pando_file *file, uint32_t uid, uint32_t gid);

/**
 * Sets the times of an open file, as pando_utimens() does.
 */
int pando_futimens(struct pando_file *file, const struct pando_timespec *times);

/**
 * Sends what was written: other clients that open the file afterwards see it.
 */
int pando_flush(struct pando_file *file);

/**
 * Sends what was written; contents and attributes are on stable storage when this returns. As
 * fsync(2).
 */
int pando_fsync(struct pando_file *file);

/**
 * Like pando_fsync(): attributes travel with the contents.
 */
int pando_fdatasync(struct pando_file *file);

/**
 * Makes an open file longer, or a range of it zeros. `mode` is 0, or of PANDO_FALLOC_KEEP_SIZE,
 * PANDO_FALLOC_PUNCH_HOLE and PANDO_FALLOC_ZERO_RANGE what fallocate(2) allows; -EOPNOTSUPP
 * otherwise.
 */
int pando_fallocate(struct pando_file *file, int mode, int64_t offset, int64_t len);

/**
 * Copies up to `len` bytes from one open file to another of the same session, without moving
 * either's offset; returns how many: fewer at the end of `from`, or after 64 MiB.
 */
int64_t pando_copy_file_range(struct pando_file *from,
                              int64_t from_offset,
                              struct pando_file *to,
                              int64_t to_offset,
                              size_t len);

/**
 * Gives an open file one more name, or its first one (O_TMPFILE), with all that was written to it.
 */
int pando_flink(struct pando_file *file, const char *path);

/**
 * Puts to `other` the same session, acting as another user.
 *
 * Each is freed with pando_disconnect(), in any order; the session ends with the last one.
 */
int pando_as_user(struct pando_fs *fs,
                  uint32_t uid,
                  uint32_t gid,
                  const uint32_t *groups,
                  size_t groups_count,
                  struct pando_fs **other);

/**
 * Sets the permission bits that new files and directories do not get; returns those before.
 */
int64_t pando_umask(struct pando_fs *fs, uint32_t umask);

/**
 * Sends everything that was written, tells the server that the session ends, and frees the handle,
 * also when it returns an error. Calls of other threads that are under way end with an error.
 *
 * Files and directories that are still open are to be closed all the same; until then their
 * functions return -EBADF. While there are other handles of the session (see pando_as_user()) only
 * this one is freed.
 */
int pando_disconnect(struct pando_fs *fs);

/**
 * Locks the whole file, changes the mode of its lock, or unlocks it, as flock(2): `mode` is
 * PANDO_LOCK_SHARED, PANDO_LOCK_EXCLUSIVE or PANDO_LOCK_NONE. With `wait` 0, -EAGAIN when another
 * has the lock; otherwise the call waits. Whoever gets the lock sees what the one before wrote.
 */
int pando_flock(struct pando_file *file, int mode, int wait);

/**
 * Locks or unlocks `len` bytes from `start` on (0: all behind it), as fcntl(2) with F_OFD_SETLK,
 * or with `wait` as F_OFD_SETLKW: -EAGAIN when another has a lock, -EDEADLK when the lock would
 * wait for itself.
 */
int pando_lock_range(struct pando_file *file, int mode, uint64_t start, uint64_t len, int wait);

/**
 * Finds a lock that conflicts with the one in `lock`, and puts it there; its mode is
 * PANDO_LOCK_NONE when there is none. As fcntl(2) with F_OFD_GETLK.
 */
int pando_get_lock(struct pando_file *file, struct pando_lock *lock);

/**
 * New options, with all defaults; null when there is no memory. Free them with
 * pando_options_free(); pando_connect() keeps nothing of them.
 */
struct pando_options *pando_options_new(void);

/**
 * Frees options. Null is fine.
 */
void pando_options_free(struct pando_options *options);

/**
 * The user for whom files are made and permissions are checked. Without: the only user that the
 * token lets act, or else root.
 */
int pando_options_set_user(struct pando_options *options,
                           uint32_t uid,
                           uint32_t gid,
                           const uint32_t *groups,
                           size_t groups_count);

/**
 * Permission bits that new files and directories do not get (022). The process's own umask does
 * not count, as a library cannot read it safely. In a directory with a default ACL that counts
 * instead.
 */
int pando_options_set_umask(struct pando_options *options, uint32_t umask);

/**
 * Milliseconds to wait for a session (10000).
 */
int pando_options_set_connect_timeout(struct pando_options *options, uint64_t milliseconds);

/**
 * Milliseconds to wait for each operation, then -ETIMEDOUT; 0 (the default) waits for a server
 * that is away until it is back. An operation that timed out may still happen. Waiting for a lock
 * has no limit.
 */
int pando_options_set_timeout(struct pando_options *options, uint64_t milliseconds);

/**
 * Name that `pando sessions` shows for this session.
 */
int pando_options_set_name(struct pando_options *options, const char *name);

/**
 * Most memory for directories that paths were resolved through, in bytes (64 MiB); 0 keeps none.
 */
int pando_options_set_path_cache(struct pando_options *options, uint64_t bytes);

/**
 * Most memory for contents that were read, in bytes (32 MiB); 0 keeps none and reads nothing ahead.
 */
int pando_options_set_read_cache(struct pando_options *options, uint64_t bytes);

/**
 * Most memory for contents that were written and not sent yet, in bytes (64 MiB); writers wait.
 */
int pando_options_set_write_buffer(struct pando_options *options, uint64_t bytes);

/**
 * When reads bring access times up to date: PANDO_ATIME_RELATIVE, _ALWAYS or _NEVER.
 */
int pando_options_set_atime(struct pando_options *options, int when);

/**
 * Rule by which connections are encrypted: PANDO_TLS_ELSEWHERE, _ALWAYS or _NEVER. `ca_file` is a PEM file
 * with the authorities that certify the servers, or null for the authority that the token names.
 */
int pando_options_set_tls(struct pando_options *options,
                          int which,
                          const char *ca_file);

/**
 * Attributes of what a path names; symbolic links are followed. As stat(2).
 */
int pando_stat(struct pando_fs *fs, const char *path, struct pando_stat *stat);

/**
 * Attributes of what a path names, of a symbolic link itself. As lstat(2).
 */
int pando_lstat(struct pando_fs *fs, const char *path, struct pando_stat *stat);

/**
 * Space and inodes of the file system.
 */
int pando_statfs(struct pando_fs *fs, struct pando_statfs *statfs);

/**
 * Checks whether the session's user may read (4), write (2) or execute (1) what a path names, or
 * whether there is anything (0). As access(2).
 */
int pando_access(struct pando_fs *fs, const char *path, int mode);

/**
 * Makes a directory. As mkdir(2).
 */
int pando_mkdir(struct pando_fs *fs, const char *path, uint32_t mode);

/**
 * Makes a directory and those above it that are missing. Fine when all are there.
 */
int pando_mkdirs(struct pando_fs *fs, const char *path, uint32_t mode);

/**
 * Removes an empty directory. As rmdir(2).
 */
int pando_rmdir(struct pando_fs *fs, const char *path);

/**
 * Makes an empty regular file without opening it; -EEXIST when the name is taken.
 */
int pando_create(struct pando_fs *fs, const char *path, uint32_t mode);

/**
 * Makes a regular or special file; `mode` has its type, `rdev` the number of a device. As mknod(2).
 */
int pando_mknod(struct pando_fs *fs, const char *path, uint32_t mode, uint32_t rdev);

/**
 * Removes a name that is not a directory's. As unlink(2).
 */
int pando_unlink(struct pando_fs *fs, const char *path);

/**
 * Moves an entry; `flags` are 0, PANDO_RENAME_NOREPLACE or PANDO_RENAME_EXCHANGE. As renameat2(2).
 */
int pando_rename(struct pando_fs *fs, const char *from, const char *to, unsigned int flags);

/**
 * Gives what `existing` names (a symbolic link itself) the name `path`, too. As link(2).
 */
int pando_link(struct pando_fs *fs, const char *existing, const char *path);

/**
 * Makes a symbolic link at `path` that points to `target`. As symlink(2).
 */
int pando_symlink(struct pando_fs *fs, const char *target, const char *path);

/**
 * Puts the target of a symbolic link to `buffer`, with a zero byte behind it; returns its length
 * without that byte. -ERANGE when `size` is not larger than the length; -EINVAL for what is no
 * symbolic link.
 */
int64_t pando_readlink(struct pando_fs *fs, const char *path, char *buffer, size_t size);

/**
 * Sets permission bits; symbolic links are followed. As chmod(2).
 */
int pando_chmod(struct pando_fs *fs, const char *path, uint32_t mode);

/**
 * Sets owner and group; PANDO_ID_SAME leaves one as it is. `flags` are 0 or PANDO_NOFOLLOW. As
 * fchownat(2).
 */
int pando_chown(struct pando_fs *fs, const char *path, uint32_t uid, uint32_t gid, int flags);

/**
 * Sets access time `times[0]` and modification time `times[1]`; null sets both to now, and
 * PANDO_UTIME_NOW and PANDO_UTIME_OMIT are for one. `flags` are 0 or PANDO_NOFOLLOW. As
 * utimensat(2).
 */
int pando_utimens(struct pando_fs *fs,
                  const char *path,
                  const struct pando_timespec *times,
                  int flags);

/**
 * Cuts a file, or makes it longer with zeros. As truncate(2).
 */
int pando_truncate(struct pando_fs *fs, const char *path, uint64_t size);

/**
 * Sends everything that was written to any file; all that was answered before is on stable storage
 * when this returns. As syncfs(2).
 */
int pando_sync(struct pando_fs *fs);

/**
 * The names in a directory are on stable storage when this returns. As fsync(2) of a directory.
 */
int pando_sync_dir(struct pando_fs *fs, const char *path);

/**
 * Reads a whole file of at most `size` bytes to `buffer`; returns its length. -EFBIG when it is
 * longer.
 */
int64_t pando_read_file(struct pando_fs *fs, const char *path, void *buffer, size_t size);

/**
 * Makes a file with these contents, or replaces the contents of the file that is there; returns
 * `size`.
 */
int64_t pando_write_file(struct pando_fs *fs,
                         const char *path,
                         uint32_t mode,
                         const void *contents,
                         size_t size);

/**
 * Puts the value of an extended attribute to `value`; returns its length. With `size` 0 only the
 * length is returned; -ERANGE when it is larger than `size`. As getxattr(2).
 */
int64_t pando_getxattr(struct pando_fs *fs,
                       const char *path,
                       const char *name,
                       void *value,
                       size_t size);

/**
 * Sets an extended attribute; `flags` are 0, PANDO_XATTR_CREATE or PANDO_XATTR_REPLACE. As
 * setxattr(2).
 */
int pando_setxattr(struct pando_fs *fs,
                   const char *path,
                   const char *name,
                   const void *value,
                   size_t size,
                   int flags);

/**
 * Puts the names of all extended attributes to `names`, each with a zero byte behind it; returns
 * the length of them all. With `size` 0 only the length is returned; -ERANGE when it is larger than
 * `size`. As listxattr(2).
 */
int64_t pando_listxattr(struct pando_fs *fs, const char *path, char *names, size_t size);

/**
 * Removes an extended attribute; -ENODATA when there is none of that name. As removexattr(2).
 */
int pando_removexattr(struct pando_fs *fs, const char *path, const char *name);

/**
 * Like pando_getxattr(), of an open file.
 */
int64_t pando_fgetxattr(struct pando_file *file, const char *name, void *value, size_t size);

/**
 * Like pando_setxattr(), of an open file.
 */
int pando_fsetxattr(struct pando_file *file,
                    const char *name,
                    const void *value,
                    size_t size,
                    int flags);

/**
 * Like pando_listxattr(), of an open file.
 */
int64_t pando_flistxattr(struct pando_file *file, char *names, size_t size);

/**
 * Like pando_removexattr(), of an open file.
 */
int pando_fremovexattr(struct pando_file *file, const char *name);

#ifdef __cplusplus
}  // extern "C"
#endif  /* __cplusplus */

#endif  /* PANDO_H */

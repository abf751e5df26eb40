/*
 * librunnel: files of Runnel volumes, streamed from a server and written back.
 *
 *     runnel_volume *volume = runnel_connect("runnel://host/volume/data", NULL);
 *     runnel_file *file = runnel_open(volume, "scenes/1.dat", O_RDONLY, 0);
 *     ssize_t got = runnel_pread(file, buffer, sizeof buffer, 4096);
 *     runnel_close(file);
 *     runnel_disconnect(volume, NULL, NULL);
 *
 * Failures: functions that return a pointer return NULL, the others -1; errno has a Linux error number, and
 * runnel_errmsg() says what happened, to which file, and what to do.
 *
 * Deadlines: no call waits longer than the deadline of its file or volume (30 s unless something else is said); then it
 * fails with ETIMEDOUT. Questions are dropped then, changes may be made yet.
 *
 * Threads: everything may be called from any thread at any time. A handle that was closed, or never was one, gives EBADF;
 * NULL gives EINVAL. After a fork, only a child that execs may go on, or one whose parent did not use the library.
 *
 * Stable storage: what was written is on the server for certain after a runnel_fsync, runnel_sync or runnel_close that
 * returned 0, and not before.
 *
 * This file is generated from crates/capi/src. Full documentation: runnel(3), docs/guides/librunnel.md.
 */


#ifndef RUNNEL_H
#define RUNNEL_H

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

/**
 * The file gets what the others leave of the link. For runnel_rate.
 */
#define RUNNEL_RATE_REST 0

/**
 * amount is percent of the link, 1 to 100. For runnel_rate.
 */
#define RUNNEL_RATE_PERCENT 1

/**
 * amount is bytes per second, at least 1. For runnel_rate.
 */
#define RUNNEL_RATE_BYTES 2

/**
 * Gives a lease back. For runnel_lease.
 */
#define RUNNEL_LEASE_NONE 0

/**
 * Keeps exclusive leases of other devices away. For runnel_lease.
 */
#define RUNNEL_LEASE_SHARED 1

/**
 * No other device may hold a lease of the file, or change it. For runnel_lease.
 */
#define RUNNEL_LEASE_EXCLUSIVE 2

/**
 * An open file. Any number of threads may use it at the same time; they share its position.
 */
typedef struct runnel_file runnel_file;

/**
 * A folder that is being listed.
 */
typedef struct runnel_folder runnel_folder;

/**
 * A volume on a server. Any number of threads may use it at the same time.
 */
typedef struct runnel_volume runnel_volume;

/**
 * How a volume is used. Fill it with runnel_options_init(&options, sizeof options) and change what
 * you like; zeros and NULLs are never nonsense. Strings are copied.
 */
typedef struct runnel_options {
    /**
     * Size of this struct as the program was compiled; set by runnel_options_init.
     */
    size_t size;
    /**
     * Bytes of data blocks that are kept in memory. Default 16 MiB.
     */
    uint64_t memory_bytes;
    /**
     * Bytes of changes in memory that the server has not got yet. Beyond half of it they are sent
     * without a sync; beyond all of it writes wait for the server. Default 8 MiB.
     */
    uint64_t dirty_bytes;
    /**
     * A folder of this device for blocks that leave memory; they are there again after a restart.
     * One volume and one process for each folder. Default NULL: none.
     */
    const char *cache_folder;
    /**
     * Bytes in the cache folder. Default 64 MiB.
     */
    uint64_t cache_bytes;
    /**
     * A folder of this device for changes that the server has not got yet, while it is away. They
     * are sent when the volume is connected again, after a restart too. One volume and one process
     * for each folder. Default NULL: they stay in memory, and are lost with the process.
     */
    const char *unsent_folder;
    /**
     * Bytes in that folder. Default 64 MiB.
     */
    uint64_t unsent_bytes;
    /**
     * Bytes per second that the server may send to this process. Default 0: as much as the link
     * takes.
     */
    uint64_t rate_bytes_per_second;
    /**
     * Milliseconds that any call waits at most; runnel_set_deadline changes it later. Default
     * 30000.
     */
    uint32_t deadline_ms;
    /**
     * Milliseconds after which calls fail while the server is away, though their deadline is
     * later. Default 0: they wait until their deadline.
     */
    uint32_t away_ms;
    /**
     * Milliseconds that attributes and listings are believed without asking again; runnel_open
     * asks always. Default 1000.
     */
    uint32_t names_ms;
    /**
     * 1: open a volume for writing over runnel:// to another machine, though others on the way can
     * read and change what is sent. Default 0: that is EACCES.
     */
    uint32_t insecure;
    /**
     * For runnels://: a PEM file of authorities to trust. Default NULL: those of the system.
     */
    const char *authorities_file;
    /**
     * For servers that ask who we are: a PEM file with our certificate, and one with its key.
     * Default NULL: none.
     */
    const char *certificate_file;
    /**
     * See certificate_file.
     */
    const char *key_file;
} runnel_options;

/**
 * What is known of a file, folder or symbolic link.
 */
typedef struct runnel_info {
    /**
     * Which file, whatever its name; 0 for one that the server has not got yet.
     */
    uint64_t file;
    /**
     * Grows with every change of the file that the server takes.
     */
    uint64_t version;
    /**
     * Bytes.
     */
    uint64_t size;
    /**
     * Time of the last change of the content, nanoseconds since 1970.
     */
    int64_t mtime_ns;
    /**
     * Kind and permission bits, as st_mode of <sys/stat.h>: S_ISREG, S_ISDIR and S_ISLNK tell the
     * kind.
     */
    uint32_t mode;
    /**
     * 0.
     */
    uint32_t reserved;
} runnel_info;

/**
 * A part of a file, bytes.
 */
typedef struct runnel_range {
    /**
     * Where it begins.
     */
    uint64_t offset;
    /**
     * How long it is.
     */
    uint64_t length;
} runnel_range;

/**
 * One entry of a folder.
 */
typedef struct runnel_entry {
    /**
     * Its name, with a zero at the end.
     */
    char name[256];
    /**
     * What it is.
     */
    struct runnel_info info;
} runnel_entry;

/**
 * Told of one change that did not get to the server and never will: the file, the bytes of the
 * change with what describes it, why, and the file of this device where the change lies now (NULL:
 * nowhere). The strings are valid during the call only. It must return, and may call the library.
 */
typedef void (*runnel_lost_callback)(void *context,
                                     const char *path,
                                     uint64_t bytes,
                                     const char *reason,
                                     const char *kept_as);

/**
 * What a volume is, holds and did so far. May grow at its end.
 */
typedef struct runnel_state {
    /**
     * 1 if the server answers, else 0.
     */
    uint32_t connected;
    /**
     * 1 if files may be changed, else 0.
     */
    uint32_t writable;
    /**
     * Bytes of a data block.
     */
    uint32_t block_bytes;
    /**
     * Open files.
     */
    uint32_t files;
    /**
     * Connections so far.
     */
    uint64_t connections;
    /**
     * Bytes of data blocks in memory.
     */
    uint64_t memory_bytes;
    /**
     * Bytes of data blocks in the cache folder.
     */
    uint64_t cache_bytes;
    /**
     * Blocks read that were in memory, in the cache folder, or known to be zeros.
     */
    uint64_t hits;
    /**
     * Blocks asked of the server because a call waited for them.
     */
    uint64_t blocks_asked;
    /**
     * Blocks that the server sent ahead of reads.
     */
    uint64_t blocks_pushed;
    /**
     * Those of them that were used later.
     */
    uint64_t blocks_used;
    /**
     * Bytes of blocks received, as they were encoded.
     */
    uint64_t bytes_received;
    /**
     * Round trip of the link, microseconds; 0 if unknown.
     */
    uint64_t round_trip_micros;
    /**
     * Rate of the link, bytes per second; 0 if unknown.
     */
    uint64_t bytes_per_second;
    /**
     * Bytes of changes that the server has not got yet.
     */
    uint64_t unsent_bytes;
    /**
     * Transactions of changes that the server has not got yet.
     */
    uint64_t unsent_transactions;
    /**
     * Those of them that lie in the folder of unsent changes.
     */
    uint64_t stored_transactions;
    /**
     * Transactions that the server has on stable storage.
     */
    uint64_t committed;
    /**
     * Changes that were lost, as runnel_lost tells them.
     */
    uint64_t lost;
} runnel_state;

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

/**
 * Sets every option to its default. size is sizeof(runnel_options) of the program, so that a later
 * library keeps off memory that it does not have.
 *
 * Returns 0, or -1 with errno EINVAL.
 */
int runnel_options_init(struct runnel_options *options, size_t size);

/**
 * Connects to a volume: runnel://host[:port]/volume/name, or runnels:// if the library was built
 * with TLS. Options may be NULL. Waits for the server until the deadline of the options.
 *
 * The connection is kept alive from then on: if it is lost, the library tries to get it back, and
 * calls wait meanwhile, each until its deadline.
 *
 * Returns NULL with errno set: EINVAL (URL, options), ENOENT (no such volume), ETIMEDOUT or EIO
 * (no server), EACCES (options.insecure), EOPNOTSUPP (it serves no volumes), EMFILE, EPERM (in a
 * forked child of a process that uses the library).
 */
struct runnel_volume *runnel_connect(const char *url, const struct runnel_options *options);

/**
 * Sets how long calls on a volume and on its files wait at most, milliseconds; files with a
 * deadline of their own keep it. 0: what would have to wait fails with ETIMEDOUT.
 *
 * Returns 0, or -1 with errno EINVAL or EBADF.
 */
int runnel_set_deadline(struct runnel_volume *volume, uint32_t milliseconds);

/**
 * Caps what the server sends to this process for the volume, bytes per second; 0: no limit.
 *
 * Returns 0, or -1 with errno EINVAL or EBADF.
 */
int runnel_limit(struct runnel_volume *volume, uint64_t bytes_per_second);

/**
 * Opens a regular file. flags are those of <fcntl.h>: one of O_RDONLY, O_WRONLY and O_RDWR, and
 * any of O_CREAT, O_EXCL, O_TRUNC and O_APPEND; O_CLOEXEC, O_NOCTTY, O_NOFOLLOW and O_LARGEFILE
 * change nothing; others are refused. mode is used with O_CREAT: permission bits, from which no
 * umask is taken. Paths begin at the top of the volume, with or without a slash. Symbolic links
 * are not followed.
 *
 * The server is asked for the present state of the file, so that whatever was synced or closed
 * anywhere before is seen.
 *
 * Returns NULL with errno set: ENOENT, EEXIST, EISDIR, EROFS, EACCES, ETIMEDOUT, EINVAL, EBADF,
 * ...
 */
struct runnel_file *runnel_open(struct runnel_volume *volume,
                                const char *path,
                                int flags,
                                uint32_t mode);

/**
 * Reads up to length bytes at the file's position, and moves it. Fewer bytes are read at the end
 * of the file, or when the deadline comes after some of them.
 *
 * Returns the bytes read, 0 at the end of the file, or -1 with errno set: ETIMEDOUT, EBADF,
 * ESTALE, EIO, ...
 */
ssize_t runnel_read(struct runnel_file *file, void *buffer, size_t length);

/**
 * Reads up to length bytes at an offset; otherwise as runnel_read. The position of the file plays
 * no part.
 *
 * Returns the bytes read, 0 at the end of the file, or -1 with errno set.
 */
ssize_t runnel_pread(struct runnel_file *file, void *buffer, size_t length, int64_t offset);

/**
 * Writes length bytes at the file's position (with O_APPEND: at the end), and moves it behind
 * them. All handles of the volume in this process see them at once; the server has them for
 * certain after runnel_fsync. Waits only if too much is unsent.
 *
 * Returns the bytes written, fewer than length if the deadline comes in between, or -1 with errno
 * set: ETIMEDOUT (it may be done yet: with O_APPEND look at the size before repeating it), ESTALE
 * (somebody else changed the file), ENOSPC, EBADF, EROFS, ...
 */
ssize_t runnel_write(struct runnel_file *file, const void *buffer, size_t length);

/**
 * Writes length bytes at an offset; otherwise as runnel_write. The position of the file plays no
 * part. With O_APPEND the bytes go to the end, as with Linux.
 *
 * Returns the bytes written, or -1 with errno set.
 */
ssize_t runnel_pwrite(struct runnel_file *file, const void *buffer, size_t length, int64_t offset);

/**
 * Moves the file's position: whence is SEEK_SET, SEEK_CUR or SEEK_END; SEEK_DATA and SEEK_HOLE are
 * understood too, and take every byte of the file for data.
 *
 * Returns the new position, or -1 with errno set: EINVAL, ENXIO (SEEK_DATA or SEEK_HOLE behind the
 * end), EBADF, ...
 */
int64_t runnel_lseek(struct runnel_file *file, int64_t offset, int whence);

/**
 * Tells what is known of an open file, with what was changed here and not sent yet.
 *
 * Returns 0, or -1 with errno set.
 */
int runnel_fstat(struct runnel_file *file, struct runnel_info *info);

/**
 * Cuts an open file to a size, or extends it with a hole. Goes to the server with the next sync.
 *
 * Returns 0, or -1 with errno set.
 */
int runnel_ftruncate(struct runnel_file *file, int64_t size);

/**
 * Returns 0 when all that was written to the file is on the server's stable storage. Otherwise -1
 * with errno set:
 *
 * ETIMEDOUT: not yet; it goes on, and a later runnel_fsync tells the outcome. ESTALE: somebody
 * else changed the file; nothing of these changes was taken; they can still be read here until the
 * file is closed. ENOSPC, EACCES, EBUSY (a lease of somebody else), EIO: the server refused them.
 * An error of earlier changes is told once for each open file.
 */
int runnel_fsync(struct runnel_file *file);

/**
 * As runnel_fsync if the file is open for writing, and the file is closed in any case: the handle
 * must not be used again, whatever the outcome.
 *
 * Returns 0, or -1 with errno set: as runnel_fsync (after ETIMEDOUT, runnel_sync tells the
 * outcome); EBADF for a handle that is not open.
 */
int runnel_close(struct runnel_file *file);

/**
 * Sets how long calls on this file wait at most, milliseconds, whatever the volume's deadline is.
 *
 * Returns 0, or -1 with errno EINVAL or EBADF.
 */
int runnel_set_file_deadline(struct runnel_file *file, uint32_t milliseconds);

/**
 * Says that a part of the file will be read soon: what of it is not here is sent by the server,
 * behind what calls wait for. A hint: it never waits, and what it asks for may be dropped when
 * memory is short.
 *
 * Returns 0, or -1 with errno EINVAL or EBADF.
 */
int runnel_prefetch(struct runnel_file *file, uint64_t offset, uint64_t length);

/**
 * As runnel_prefetch, for up to 1024 parts, which will be read in this order.
 *
 * Returns 0, or -1 with errno EINVAL or EBADF.
 */
int runnel_prefetch_ranges(struct runnel_file *file,
                           const struct runnel_range *ranges,
                           size_t count);

/**
 * Says how much of the link the file gets for what is sent ahead of reads, whatever its profile
 * says: what is RUNNEL_RATE_REST, RUNNEL_RATE_PERCENT or RUNNEL_RATE_BYTES. What a call waits for
 * comes first in any case.
 *
 * Returns 0, or -1 with errno EINVAL or EBADF.
 */
int runnel_rate(struct runnel_file *file, int what, uint64_t amount);

/**
 * Takes, renews or gives back a lease of the file for this device: kind is RUNNEL_LEASE_SHARED,
 * RUNNEL_LEASE_EXCLUSIVE or RUNNEL_LEASE_NONE. It ends by itself after the milliseconds, or a
 * while after the device is gone. Sync what was written under a lease before giving it back.
 *
 * Returns how long it holds, milliseconds, which may be less than asked for (0 if it was given
 * back), or -1 with errno set: EBUSY (somebody else holds one), ETIMEDOUT, EINVAL, ...
 */
int64_t runnel_lease(struct runnel_file *file, int kind, uint32_t milliseconds);

/**
 * Tells what is known of the file, folder or link at a path, with what was changed here and not
 * sent yet. Links are not followed.
 *
 * Returns 0, or -1 with errno set: ENOENT, ENOTDIR, ETIMEDOUT, ...
 */
int runnel_stat(struct runnel_volume *volume, const char *path, struct runnel_info *info);

/**
 * Removes a file or symbolic link; what was written to it and not sent is dropped.
 *
 * Returns 0 when the server has done it, or -1 with errno set: ENOENT, EISDIR, EROFS, ...
 */
int runnel_unlink(struct runnel_volume *volume, const char *path);

/**
 * Renames a file, folder or link, and replaces what has the new name.
 *
 * Returns 0 when the server has done it, or -1 with errno set: ENOENT, ENOTEMPTY, EROFS, ESTALE,
 * ...
 */
int runnel_rename(struct runnel_volume *volume, const char *from, const char *to);

/**
 * Makes a folder.
 *
 * Returns 0 when the server has done it, or -1 with errno set: EEXIST, ENOENT, EROFS, ...
 */
int runnel_mkdir(struct runnel_volume *volume, const char *path, uint32_t mode);

/**
 * Removes an empty folder.
 *
 * Returns 0 when the server has done it, or -1 with errno set: ENOENT, ENOTDIR, ENOTEMPTY, EROFS,
 * ...
 */
int runnel_rmdir(struct runnel_volume *volume, const char *path);

/**
 * Cuts a file to a size, or extends it with a hole.
 *
 * Returns 0 when the server has done it, or -1 with errno set.
 */
int runnel_truncate(struct runnel_volume *volume, const char *path, int64_t size);

/**
 * Sets permission bits (07777).
 *
 * Returns 0, or -1 with errno set.
 */
int runnel_chmod(struct runnel_volume *volume, const char *path, uint32_t mode);

/**
 * Sets the time of the last change, nanoseconds since 1970.
 *
 * Returns 0, or -1 with errno set.
 */
int runnel_utime(struct runnel_volume *volume, const char *path, int64_t mtime_ns);

/**
 * Tells where a symbolic link points, as readlink(2): without a zero at the end, and cut if size
 * is too small.
 *
 * Returns the bytes written to target, or -1 with errno set: EINVAL (no link), ENOENT, ...
 */
ssize_t runnel_readlink(struct runnel_volume *volume, const char *path, char *target, size_t size);

/**
 * Begins to list a folder; "" or "/" is the top one. The entries are those of this moment, in the
 * order of their names' bytes, without "." and "..".
 *
 * Returns NULL with errno set: ENOENT, ENOTDIR, ETIMEDOUT, ...
 */
struct runnel_folder *runnel_opendir(struct runnel_volume *volume, const char *path);

/**
 * Tells the next entry. Never waits.
 *
 * Returns 1, 0 when there are no more, or -1 with errno EINVAL or EBADF.
 */
int runnel_readdir(struct runnel_folder *folder, struct runnel_entry *entry);

/**
 * Ends a listing.
 *
 * Returns 0, or -1 with errno EINVAL or EBADF.
 */
int runnel_closedir(struct runnel_folder *folder);

/**
 * Waits until everything that was written to any file of the volume is on the server's stable
 * storage.
 *
 * Returns 0, or -1 with errno set as for runnel_fsync.
 */
int runnel_sync(struct runnel_volume *volume);

/**
 * Tells of the changes of this volume that were lost so far, the latest 64, those of earlier
 * processes that were in its folder of unsent changes among them. told may be NULL, to count them
 * only.
 *
 * Returns their number, or -1 with errno EINVAL or EBADF.
 */
int runnel_lost(struct runnel_volume *volume, runnel_lost_callback told, void *context);

/**
 * Syncs everything, until the volume's deadline at most, and ends the volume: its files and calls
 * that wait in other threads fail from then on, and the handle must not be used again, whatever
 * the outcome. told (may be NULL) is called for changes that are lost by it.
 *
 * Returns 0 if the server has everything, or -1 with errno set: ETIMEDOUT or another one of
 * runnel_sync if changes were left in the folder of unsent changes, to be sent when the volume is
 * connected again, or are lost; EINVAL or EBADF.
 */
int runnel_disconnect(struct runnel_volume *volume, runnel_lost_callback told, void *context);

/**
 * Tells what a volume is, holds and did. size is sizeof(runnel_state) of the program. Never waits.
 *
 * Returns 0, or -1 with errno EINVAL or EBADF.
 */
int runnel_status(struct runnel_volume *volume, struct runnel_state *state, size_t size);

/**
 * The version of the library that runs, as "0.1.0".
 */
const char *runnel_version(void);

/**
 * What the last call of this thread that failed had to say: what happened, to which file, and what
 * to do about it.
 *
 * Never NULL; empty if nothing failed yet. Valid until the next call of this thread that fails, so
 * copy what you keep.
 */
const char *runnel_errmsg(void);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* RUNNEL_H */

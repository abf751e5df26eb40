/*
 * contract: what runnel.h promises, checked from C against a writable volume.
 *
 *     contract runnel://host/volume/name
 */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <runnel.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#define CHECK(what)                                                                                                   \
    do {                                                                                                              \
        if (!(what)) {                                                                                                \
            fprintf(stderr, "%s:%d: %s; errno %d, %s\n", __FILE__, __LINE__, #what, errno, runnel_errmsg());          \
            exit(1);                                                                                                  \
        }                                                                                                             \
    } while (0)

/* A call that has to fail so, with a message. */
#define FAILS(call, why) CHECK((errno = 0, (call)) == -1 && errno == (why) && *runnel_errmsg())
#define FAILS_NULL(call, why) CHECK((errno = 0, (call)) == NULL && errno == (why) && *runnel_errmsg())

enum { THREADS = 8, PIECES = 64, PIECE_BYTES = 3000 };

static void options_grow_without_harm(const char *url)
{
    struct {
        runnel_options known;
        char later[64];
    } larger;
    memset(&larger, 0xff, sizeof larger);
    CHECK(runnel_options_init(&larger.known, sizeof larger) == 0);
    for (size_t i = 0; i < sizeof larger.later; i++)
        CHECK(larger.later[i] == 0);
    runnel_volume *volume = runnel_connect(url, &larger.known);
    CHECK(volume);
    CHECK(runnel_disconnect(volume, NULL, NULL) == 0);
    larger.later[5] = 1;
    FAILS_NULL(runnel_connect(url, &larger.known), EINVAL);

    /* as a program of an earlier version: the rest keeps its defaults */
    struct {
        size_t size;
        uint64_t memory_bytes;
        char guard[16];
    } smaller;
    memset(&smaller, 0x55, sizeof smaller);
    CHECK(runnel_options_init((runnel_options *)(void *)&smaller, offsetof(runnel_options, dirty_bytes)) == 0);
    CHECK(smaller.guard[0] == 0x55 && smaller.memory_bytes == 16 << 20);
    volume = runnel_connect(url, (runnel_options *)(void *)&smaller);
    CHECK(volume);
    CHECK(runnel_disconnect(volume, NULL, NULL) == 0);
    smaller.size = 0;
    FAILS_NULL(runnel_connect(url, (runnel_options *)(void *)&smaller), EINVAL);
    FAILS(runnel_options_init(NULL, sizeof larger), EINVAL);
    FAILS(runnel_options_init(&larger.known, 1), EINVAL);
}

static void nonsense_is_refused(runnel_volume *volume)
{
    char byte = 0;
    runnel_info info;
    FAILS_NULL(runnel_connect(NULL, NULL), EINVAL);
    FAILS_NULL(runnel_connect("http://h/x", NULL), EINVAL);
    FAILS_NULL(runnel_connect("runnel://h/image", NULL), EINVAL);
    FAILS_NULL(runnel_open(NULL, "x", O_RDONLY, 0), EINVAL);
    FAILS_NULL(runnel_open(volume, NULL, O_RDONLY, 0), EINVAL);
    FAILS_NULL(runnel_open(volume, "../x", O_RDONLY, 0), EINVAL);
    FAILS_NULL(runnel_open(volume, "x", O_RDONLY | O_DIRECTORY, 0), EINVAL);
    FAILS_NULL(runnel_open(volume, "x", O_RDONLY | O_TRUNC, 0), EINVAL);
    FAILS_NULL(runnel_open(volume, "x", O_RDWR | O_EXCL, 0), EINVAL);
    FAILS_NULL(runnel_open(volume, "nothing", O_RDONLY, 0), ENOENT);
    CHECK(strstr(runnel_errmsg(), "nothing"));
    FAILS_NULL(runnel_open((runnel_volume *)(void *)&byte, "x", O_RDONLY, 0), EBADF);
    FAILS(runnel_read((runnel_file *)(void *)volume, &byte, 1), EBADF);
    FAILS(runnel_close((runnel_file *)(void *)&info), EBADF);
    FAILS(runnel_stat(volume, "x", NULL), EINVAL);
    FAILS(runnel_disconnect(NULL, NULL, NULL), EINVAL);
    char *path = malloc(5001);
    memset(path, 'a', 5000);
    path[5000] = 0;
    FAILS(runnel_stat(volume, path, &info), ENAMETOOLONG);
    path[300] = 0;
    FAILS(runnel_mkdir(volume, path, 0755), ENAMETOOLONG);
    free(path);
}

static void files_behave_as_files(runnel_volume *volume)
{
    char buffer[64];
    runnel_info info;
    runnel_file *file = runnel_open(volume, "/a file", O_RDWR | O_CREAT | O_EXCL, 0640);
    CHECK(file);
    CHECK(runnel_write(file, "hello world", 11) == 11);
    CHECK(runnel_lseek(file, 0, SEEK_CUR) == 11 && runnel_lseek(file, -5, SEEK_END) == 6);
    CHECK(runnel_read(file, buffer, sizeof buffer) == 5 && memcmp(buffer, "world", 5) == 0);
    CHECK(runnel_read(file, buffer, sizeof buffer) == 0);
    CHECK(runnel_pwrite(file, "W", 1, 6) == 1 && runnel_pread(file, buffer, 5, 6) == 5 && buffer[0] == 'W');
    CHECK(runnel_lseek(file, 3, SEEK_DATA) == 3 && runnel_lseek(file, 3, SEEK_HOLE) == 11);
    FAILS(runnel_lseek(file, 11, SEEK_DATA), ENXIO);
    FAILS(runnel_lseek(file, -1, SEEK_SET), EINVAL);
    FAILS(runnel_lseek(file, 0, 99), EINVAL);
    FAILS(runnel_pread(file, buffer, 1, -1), EINVAL);
    FAILS(runnel_pwrite(file, buffer, 2, INT64_MAX), EFBIG);
    FAILS(runnel_read(file, NULL, 1), EINVAL);
    FAILS(runnel_read(file, buffer, SIZE_MAX), EINVAL);
    CHECK(runnel_read(file, NULL, 0) == 0 && runnel_write(file, NULL, 0) == 0);
    CHECK(runnel_fsync(file) == 0 && runnel_fstat(file, &info) == 0 && info.size == 11);
    CHECK(runnel_ftruncate(file, 5) == 0 && runnel_fstat(file, &info) == 0 && info.size == 5);
    FAILS(runnel_ftruncate(file, -1), EINVAL);
    CHECK(runnel_close(file) == 0);
    FAILS(runnel_close(file), EBADF);
    FAILS(runnel_read(file, buffer, 1), EBADF);

    CHECK(runnel_stat(volume, "a file", &info) == 0 && info.size == 5 && S_ISREG(info.mode));
    CHECK((info.mode & 0777) == 0640 && info.file != 0 && info.mtime_ns > 0);
    FAILS_NULL(runnel_open(volume, "a file", O_WRONLY | O_CREAT | O_EXCL, 0640), EEXIST);
    file = runnel_open(volume, "a file", O_WRONLY | O_APPEND, 0);
    CHECK(file && runnel_write(file, "!", 1) == 1 && runnel_lseek(file, 0, SEEK_CUR) == 6);
    FAILS(runnel_read(file, buffer, 1), EBADF);
    CHECK(runnel_sync(volume) == 0 && runnel_close(file) == 0);
    file = runnel_open(volume, "a file", O_RDONLY, 0);
    CHECK(file && runnel_read(file, buffer, sizeof buffer) == 6 && memcmp(buffer, "hello!", 6) == 0);
    FAILS(runnel_write(file, "x", 1), EBADF);
    CHECK(runnel_close(file) == 0);
}

static void names_behave_as_names(runnel_volume *volume)
{
    runnel_info info;
    runnel_entry entry;
    CHECK(runnel_mkdir(volume, "folder", 0750) == 0);
    FAILS(runnel_mkdir(volume, "folder", 0750), EEXIST);
    CHECK(runnel_stat(volume, "folder/", &info) == 0 && S_ISDIR(info.mode));
    FAILS_NULL(runnel_open(volume, "folder", O_RDONLY, 0), EISDIR);
    for (int i = 0; i < 3; i++) {
        char path[32];
        snprintf(path, sizeof path, "folder//./%c", "cab"[i]);
        runnel_file *file = runnel_open(volume, path, O_WRONLY | O_CREAT, 0600);
        CHECK(file && runnel_close(file) == 0);
    }
    FAILS(runnel_rmdir(volume, "folder"), ENOTEMPTY);
    CHECK(runnel_rename(volume, "folder/c", "folder/d") == 0);
    CHECK(runnel_chmod(volume, "folder/d", 0444) == 0 && runnel_utime(volume, "folder/d", 1234567890123456789) == 0);
    CHECK(runnel_truncate(volume, "folder/d", 10) == 0);
    CHECK(runnel_utime(volume, "folder/d", 1234567890123456789) == 0);
    CHECK(runnel_stat(volume, "folder/d", &info) == 0 && info.size == 10 && (info.mode & 0777) == 0444);
    CHECK(info.mtime_ns == 1234567890123456789);
    char names[8] = "";
    runnel_folder *folder = runnel_opendir(volume, "folder");
    CHECK(folder);
    for (int more; (more = runnel_readdir(folder, &entry)) != 0;) {
        CHECK(more == 1 && strlen(entry.name) == 1 && S_ISREG(entry.info.mode));
        strcat(names, entry.name);
    }
    CHECK(strcmp(names, "abd") == 0);
    CHECK(runnel_closedir(folder) == 0);
    FAILS(runnel_closedir(folder), EBADF);
    FAILS(runnel_readdir(folder, &entry), EBADF);
    FAILS_NULL(runnel_opendir(volume, "nothing"), ENOENT);
    CHECK(runnel_unlink(volume, "folder/a") == 0 && runnel_unlink(volume, "folder/b") == 0);
    CHECK(runnel_unlink(volume, "folder/d") == 0 && runnel_rmdir(volume, "folder") == 0);
    FAILS(runnel_unlink(volume, "folder/a"), ENOENT);
    char target[8];
    FAILS(runnel_readlink(volume, "a file", target, sizeof target), EINVAL);
}

static void hints_are_only_hints(runnel_volume *volume)
{
    runnel_file *file = runnel_open(volume, "a file", O_RDWR, 0);
    CHECK(file);
    runnel_range ranges[2] = {{0, 100}, {UINT64_MAX, UINT64_MAX}};
    CHECK(runnel_prefetch(file, 0, 4096) == 0 && runnel_prefetch(file, UINT64_MAX, UINT64_MAX) == 0);
    CHECK(runnel_prefetch_ranges(file, ranges, 2) == 0);
    FAILS(runnel_prefetch_ranges(file, NULL, 2), EINVAL);
    FAILS(runnel_prefetch_ranges(file, ranges, SIZE_MAX), EINVAL);
    CHECK(runnel_rate(file, RUNNEL_RATE_PERCENT, 50) == 0 && runnel_rate(file, RUNNEL_RATE_BYTES, 10000) == 0);
    CHECK(runnel_rate(file, RUNNEL_RATE_REST, 0) == 0);
    FAILS(runnel_rate(file, RUNNEL_RATE_PERCENT, 101), EINVAL);
    CHECK(runnel_limit(volume, 1 << 30) == 0 && runnel_limit(volume, 0) == 0);
    CHECK(runnel_lease(file, RUNNEL_LEASE_EXCLUSIVE, 60000) > 0);
    CHECK(runnel_lease(file, RUNNEL_LEASE_NONE, 0) == 0);
    FAILS(runnel_lease(file, 7, 1), EINVAL);
    runnel_state state;
    CHECK(runnel_status(volume, &state, sizeof state) == 0 && state.connected == 1 && state.writable == 1);
    CHECK(state.files >= 1 && state.block_bytes >= 512 && state.unsent_bytes == 0 && state.lost == 0);
    CHECK(runnel_lost(volume, NULL, NULL) == 0);
    CHECK(runnel_close(file) == 0);
}

static runnel_file *shared_file;

/* Each thread writes and reads pieces of its own, and one byte after another by the shared position. */
static void *use_file(void *number)
{
    char mine[PIECE_BYTES], back[PIECE_BYTES];
    long thread = (long)(intptr_t)number;
    memset(mine, 'a' + (int)thread, sizeof mine);
    for (long piece = 0; piece < PIECES; piece++) {
        int64_t offset = (piece * THREADS + thread) * PIECE_BYTES;
        CHECK(runnel_pwrite(shared_file, mine, sizeof mine, offset) == PIECE_BYTES);
        CHECK(runnel_pread(shared_file, back, sizeof back, offset) == PIECE_BYTES);
        CHECK(memcmp(mine, back, sizeof mine) == 0);
    }
    FAILS(runnel_pread(shared_file, back, 1, -(int64_t)thread - 1), EINVAL);
    CHECK(strstr(runnel_errmsg(), "offset"));
    long got = 0;
    while (runnel_read(shared_file, back, 1000) > 0)
        got++;
    return (void *)(intptr_t)got;
}

static void threads_share_files(runnel_volume *volume)
{
    pthread_t threads[THREADS];
    shared_file = runnel_open(volume, "shared", O_RDWR | O_CREAT, 0600);
    CHECK(shared_file && runnel_ftruncate(shared_file, (int64_t)THREADS * PIECES * PIECE_BYTES) == 0);
    for (long i = 0; i < THREADS; i++)
        CHECK(pthread_create(&threads[i], NULL, use_file, (void *)(intptr_t)i) == 0);
    long reads = 0;
    for (int i = 0; i < THREADS; i++) {
        void *got;
        CHECK(pthread_join(threads[i], &got) == 0);
        reads += (long)(intptr_t)got;
    }
    /* no byte was read twice, and none left out */
    CHECK(reads == (long)THREADS * PIECES * PIECE_BYTES / 1000);
    CHECK(runnel_fsync(shared_file) == 0 && runnel_close(shared_file) == 0);
}

/* Handles that were never given out, or belong to something else: errors, whatever is done with them. */
static void wild_handles_are_errors(runnel_volume *volume)
{
    runnel_file *file = runnel_open(volume, "a file", O_RDWR, 0);
    runnel_folder *folder = runnel_opendir(volume, "");
    CHECK(file && folder);
    const uintptr_t known[3] = {(uintptr_t)volume, (uintptr_t)file, (uintptr_t)folder};
    uint64_t state = 1;
    char byte;
    runnel_info info;
    for (int i = 0; i < 50000; i++) {
        state = state * 6364136223846793005u + 1442695040888963407u;
        uint64_t random = state >> 20;
        uintptr_t wild[3] = {(uintptr_t)state, known[random % 3] + random / 3 % 9 - 4, random % 64};
        void *handle = (void *)wild[random / 27 % 3];
        if ((uintptr_t)handle == known[0] || (uintptr_t)handle == known[1] || (uintptr_t)handle == known[2])
            continue;
        int why = handle ? EBADF : EINVAL;
        switch (random / 81 % 8) {
        case 0: FAILS(runnel_read(handle, &byte, 1), why); break;
        case 1: FAILS(runnel_close(handle), why); break;
        case 2: FAILS(runnel_disconnect(handle, NULL, NULL), why); break;
        case 3: FAILS(runnel_closedir(handle), why); break;
        case 4: FAILS(runnel_fstat(handle, &info), why); break;
        case 5: FAILS(runnel_sync(handle), why); break;
        case 6: FAILS(runnel_lseek(handle, 0, SEEK_SET), why); break;
        default: FAILS(runnel_prefetch(handle, 0, 1), why); break;
        }
    }
    CHECK(runnel_closedir(folder) == 0 && runnel_close(file) == 0);
}

static void forked_children_are_refused(runnel_volume *volume)
{
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        runnel_info info;
        _exit(runnel_stat(volume, "a file", &info) == -1 && errno == EPERM ? 0 : 1);
    }
    int status;
    CHECK(waitpid(child, &status, 0) == child && status == 0);
}

static void disconnecting_ends_everything(const char *url)
{
    char byte;
    runnel_volume *volume = runnel_connect(url, NULL);
    CHECK(volume);
    runnel_file *file = runnel_open(volume, "left open", O_RDWR | O_CREAT, 0600);
    CHECK(file && runnel_write(file, "x", 1) == 1);
    CHECK(runnel_disconnect(volume, NULL, NULL) == 0);
    FAILS(runnel_read(file, &byte, 1), EBADF);
    FAILS(runnel_close(file), EBADF);
    FAILS(runnel_disconnect(volume, NULL, NULL), EBADF);
    FAILS_NULL(runnel_open(volume, "left open", O_RDONLY, 0), EBADF);
}

int main(int count, char **arguments)
{
    CHECK(count == 2);
    CHECK(*runnel_errmsg() == 0 && *runnel_version());
    runnel_volume *volume = runnel_connect(arguments[1], NULL);
    CHECK(volume);
    nonsense_is_refused(volume);
    files_behave_as_files(volume);
    names_behave_as_names(volume);
    hints_are_only_hints(volume);
    threads_share_files(volume);
    wild_handles_are_errors(volume);
    forked_children_are_refused(volume);
    CHECK(runnel_disconnect(volume, NULL, NULL) == 0);
    options_grow_without_harm(arguments[1]);
    disconnecting_ends_everything(arguments[1]);
    printf("all kept\n");
    return 0;
}

/*
 * put: copies a file of this machine to a volume, and returns when the server has it on stable storage.
 *
 *     put [-n] [-u folder] runnel://host/volume/data path < file
 *
 * -n: only if there is no such file yet. -u: a folder where what cannot be sent now is kept; the next program that connects with
 * this folder sends it. If somebody else changes the file meanwhile, it starts again, three times.
 */
#include <errno.h>
#include <fcntl.h>
#include <runnel.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { TRIES = 3 };

/* Says why the last call failed, and returns its errno. */
static int fail(const char *what)
{
    int why = errno;
    fprintf(stderr, "put: %s: %s\n", what, runnel_errmsg());
    return why;
}

/* What cannot be sent any more is said, whatever else happens. */
static void lost(void *context, const char *path, uint64_t bytes, const char *reason, const char *kept_as)
{
    (void)context;
    fprintf(stderr, "put: lost: %s (%lu bytes): %s%s%s\n", path, (unsigned long)bytes, reason,
            kept_as ? "; kept as " : "", kept_as ? kept_as : "");
}

/* Standard input as a whole: it may have to be sent again. */
static char *read_all(size_t *length)
{
    size_t room = 1 << 16;
    char *bytes = malloc(room);
    *length = 0;
    while (bytes) {
        size_t got = fread(bytes + *length, 1, room - *length, stdin);
        *length += got;
        if (got == 0)
            return bytes;
        if (*length == room) {
            room *= 2;
            char *larger = realloc(bytes, room);
            if (!larger)
                free(bytes);
            bytes = larger;
        }
    }
    return NULL;
}

/* One attempt: 0, or why it failed, which was said. */
static int put(runnel_volume *volume, const char *path, int flags, const char *bytes, size_t length)
{
    runnel_file *file = runnel_open(volume, path, O_WRONLY | O_CREAT | O_TRUNC | flags, 0644);
    if (!file)
        return fail(path);
    int why = 0;
    for (size_t done = 0; done < length && !why;) {
        /* fewer bytes are written when the deadline comes in between; pwrite may be repeated without harm */
        ssize_t written = runnel_pwrite(file, bytes + done, length - done, (int64_t)done);
        if (written < 0)
            why = fail(path);
        else
            done += (size_t)written;
    }
    /* only this tells that the server has it on stable storage */
    if (!why && runnel_fsync(file) < 0)
        why = fail(path);
    /* syncs what is unsynced, and frees the handle in any case */
    if (runnel_close(file) < 0 && !why)
        why = fail(path);
    return why;
}

int main(int count, char **arguments)
{
    runnel_options options;
    runnel_options_init(&options, sizeof options);
    int flags = 0, at = 1;
    for (; at < count && arguments[at][0] == '-'; at++) {
        if (strcmp(arguments[at], "-n") == 0)
            flags = O_EXCL;
        else if (strcmp(arguments[at], "-u") == 0 && at + 1 < count)
            options.unsent_folder = arguments[++at];
        else
            break;
    }
    if (count - at != 2) {
        fprintf(stderr, "usage: put [-n] [-u folder] runnel://host[:port]/volume/name path < file\n");
        return 2;
    }
    const char *path = arguments[at + 1];

    size_t length;
    char *bytes = read_all(&length);
    if (!bytes || ferror(stdin)) {
        perror("put: standard input");
        return 1;
    }
    runnel_volume *volume = runnel_connect(arguments[at], &options);
    if (!volume)
        return fail(arguments[at]) != 0;

    /* ESTALE: somebody else changed the file between our open and our fsync. Here the last writer wins, so start again. */
    int why = put(volume, path, flags, bytes, length);
    for (int tries = 1; why == ESTALE && tries < TRIES; tries++)
        why = put(volume, path, flags, bytes, length);

    /* Tries once more to send what a deadline cut off; what stays is in the folder of unsent changes, or lost and told. */
    if (runnel_disconnect(volume, lost, NULL) < 0)
        why = fail("disconnect");
    free(bytes);
    return why != 0;
}

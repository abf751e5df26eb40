/*
 * scatter: reads records of a file in an order that the server cannot guess, but the program knows beforehand.
 *
 *     scatter runnel://host/volume/data table.bin [records [deadline-milliseconds]]
 *
 * It tells the library which records it will read, in their order; so they travel while it works on the first ones. Each read has a
 * deadline: a record that is late is left out, and asked for again at the end.
 */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <runnel.h>
#include <stdio.h>
#include <stdlib.h>

enum { RECORD_BYTES = 1024, RECORDS_MAX = 1024 };

static int fail(const char *what)
{
    fprintf(stderr, "scatter: %s: %s\n", what, runnel_errmsg());
    return 1;
}

/* A generator of its own, so that every run reads the same records. */
static uint64_t next_random(uint64_t *state)
{
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    return *state;
}

/* Adds the bytes of one record to the sum: 1 if it was read, 0 if it was late, -1 for another failure. */
static int read_record(runnel_file *file, runnel_range range, uint64_t *sum)
{
    unsigned char record[RECORD_BYTES];
    ssize_t got = runnel_pread(file, record, range.length, (int64_t)range.offset);
    if (got < 0)
        return errno == ETIMEDOUT ? 0 : -1;
    for (ssize_t i = 0; i < got; i++)
        *sum += record[i];
    /* Fewer bytes are the end of the file, or the deadline came in between. */
    return (uint64_t)got == range.length ? 1 : 0;
}

int main(int count, char **arguments)
{
    if (count < 3 || count > 5) {
        fprintf(stderr, "usage: scatter runnel://host[:port]/volume/name path [records [milliseconds]]\n");
        return 2;
    }
    long records = count > 3 ? atol(arguments[3]) : 100;
    long deadline = count > 4 ? atol(arguments[4]) : 1000;
    if (records < 1 || records > RECORDS_MAX || deadline < 0) {
        fprintf(stderr, "scatter: 1 to %d records, and a deadline that is not negative\n", RECORDS_MAX);
        return 2;
    }

    runnel_options options;
    runnel_options_init(&options, sizeof options);
    options.memory_bytes = 1 << 20; /* a small device */
    runnel_volume *volume = runnel_connect(arguments[1], &options);
    if (!volume)
        return fail(arguments[1]);
    runnel_file *file = runnel_open(volume, arguments[2], O_RDONLY, 0);
    runnel_info info;
    if (!file || runnel_fstat(file, &info) < 0)
        return fail(arguments[2]);
    if (info.size < RECORD_BYTES) {
        fprintf(stderr, "scatter: %s has not even one record\n", arguments[2]);
        return 1;
    }

    /* Which records will be needed, in their order. */
    static runnel_range ranges[RECORDS_MAX];
    uint64_t state = 88172645463325252u;
    for (long i = 0; i < records; i++) {
        ranges[i].offset = next_random(&state) % (info.size / RECORD_BYTES) * RECORD_BYTES;
        ranges[i].length = RECORD_BYTES;
    }
    if (runnel_prefetch_ranges(file, ranges, (size_t)records) < 0)
        return fail("prefetch");

    /* At first only what comes in time; then what was late, with all the time there is. */
    uint64_t sum = 0;
    long late = 0;
    static char is_late[RECORDS_MAX];
    runnel_set_file_deadline(file, (uint32_t)deadline);
    for (long i = 0; i < records; i++) {
        int outcome = read_record(file, ranges[i], &sum);
        if (outcome < 0)
            return fail("read");
        is_late[i] = outcome == 0;
        late += outcome == 0;
    }
    runnel_set_file_deadline(file, options.deadline_ms);
    for (long i = 0; i < records; i++)
        if (is_late[i] && read_record(file, ranges[i], &sum) != 1)
            return fail("read");

    runnel_state now;
    if (runnel_status(volume, &now, sizeof now) < 0)
        return fail("status");
    printf("sum %" PRIu64 "\n", sum);
    fprintf(stderr, "%ld records, %ld of them late; %" PRIu64 " blocks sent ahead, %" PRIu64 " asked for\n", records, late,
            now.blocks_pushed, now.blocks_asked);

    runnel_close(file);
    runnel_disconnect(volume, NULL, NULL);
    return 0;
}

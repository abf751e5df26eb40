/*
 * cat: writes a file of a volume to standard output.
 *
 *     cat runnel://host/volume/data scenes/1.dat
 */
#include <errno.h>
#include <fcntl.h>
#include <runnel.h>
#include <stdio.h>

static int fail(const char *what)
{
    fprintf(stderr, "cat: %s: %s\n", what, runnel_errmsg());
    return 1;
}

int main(int count, char **arguments)
{
    if (count != 3) {
        fprintf(stderr, "usage: cat runnel://host[:port]/volume/name path\n");
        return 2;
    }

    runnel_volume *volume = runnel_connect(arguments[1], NULL);
    if (!volume)
        return fail(arguments[1]);
    runnel_file *file = runnel_open(volume, arguments[2], O_RDONLY, 0);
    if (!file)
        return fail("open");

    static char buffer[65536];
    ssize_t got;
    while ((got = runnel_read(file, buffer, sizeof buffer)) > 0)
        if (fwrite(buffer, 1, (size_t)got, stdout) != (size_t)got) {
            perror("cat: standard output");
            return 1;
        }
    if (got < 0)
        return fail("read");

    runnel_close(file); /* was only read, so nothing can be lost */
    runnel_disconnect(volume, NULL, NULL);
    return fflush(stdout) == 0 ? 0 : 1;
}

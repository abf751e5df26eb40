/*
 * Makes the system calls whose numbers are given, each in a process of its own, with arguments that no call accepts, and prints error
 * numbers.
 *   calls removed N…   twice each, as a program would that does not believe it: "removed N ERROR"
 *   calls kept N…      with all bits set and with zeros: "@@call N ERROR ERROR", where 0 is any success
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

/* The error of one call; a signal as its number plus 1000. */
static int ask(long number, long argument) {
    int ends[2];
    if (pipe(ends)) exit(1);
    fflush(stdout);
    pid_t child = fork();
    if (child == 0) {
        /* A call that is there after all may do anything, and wait for ever. */
        struct rlimit none = {0, 0};
        setrlimit(RLIMIT_CORE, &none);
        setsid();
        alarm(1);
        errno = 0;
        long result = syscall(number, argument, argument, argument, argument, argument, argument);
        int error = result == -1 ? errno : 0;
        if (write(ends[1], &error, sizeof error) != sizeof error) _exit(2);
        _exit(0);
    }
    close(ends[1]);
    int error = -1, status;
    if (read(ends[0], &error, sizeof error) != sizeof error) error = -1;
    close(ends[0]);
    waitpid(child, &status, 0);
    return WIFSIGNALED(status) ? 1000 + WTERMSIG(status) : error;
}

int main(int count, char **words) {
    int kept = count > 1 && !strcmp(words[1], "kept");
    for (int i = 2; i < count; i++) {
        long number = atol(words[i]);
        int first = ask(number, -1), second = ask(number, kept ? 0 : -1);
        if (kept) printf("@@call %ld %d %d\n", number, first, second);
        else printf("removed %ld %d\n", number, first == second ? first : -2);
    }
    return 0;
}

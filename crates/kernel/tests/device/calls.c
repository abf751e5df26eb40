/* Makes each system call whose number is given, with arguments that no call accepts, and prints its error number. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

int main(int count, char **numbers) {
    for (int i = 1; i < count; i++) {
        fflush(stdout);
        /* In a process of its own: a call that is there after all may do anything. */
        pid_t child = fork();
        if (child == 0) {
            alarm(5);
            errno = 0;
            long result = syscall(atol(numbers[i]), -1L, -1L, -1L, -1L, -1L, -1L);
            printf("calls %s %d\n", numbers[i], result == -1 ? errno : 0);
            fflush(stdout);
            _exit(0);
        }
        int status;
        waitpid(child, &status, 0);
        if (status != 0) printf("calls %s ended %d\n", numbers[i], status);
    }
    return 0;
}

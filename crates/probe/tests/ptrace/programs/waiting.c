// Waits for input in calls that the kernel does not start again, while a child ends and a tracer lets go.
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/wait.h>
#include <unistd.h>

int before(int value) { return value * 3 + 1; }
int again(int value) { return value * 5 + 2; }

static int sleeps(pid_t process) {
    char path[64], line[512] = "";
    snprintf(path, sizeof path, "/proc/%d/stat", (int)process);
    FILE *file = fopen(path, "r");
    char *state = file && fgets(line, sizeof line, file) ? strrchr(line, ')') : 0;
    if (file)
        fclose(file);
    return state && state[2] == 'S';
}

int main(void) {
    struct epoll_event event = {.events = EPOLLIN};
    int poll = epoll_create1(0);
    epoll_ctl(poll, EPOLL_CTL_ADD, 0, &event);
    printf("before %d\n", before(1));
    fflush(stdout);
    pid_t parent = getpid(), child = fork();
    if (child == 0) {
        // Its end wakes nobody: SIGCHLD is not handled.
        while (!sleeps(parent)) {
        }
        printf("again %d\n", again(1));
        fflush(stdout);
        _exit(3);
    }
    int count = epoll_wait(poll, &event, 1, -1);
    printf("epoll_wait %d %s\n", count, count < 0 ? strerror(errno) : "");
    int status;
    waitpid(child, &status, 0);
    return WEXITSTATUS(status);
}

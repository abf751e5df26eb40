// Children of every kind, each calling functions that may hold a breakpoint; prints what each of them returned.
#define _GNU_SOURCE
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

extern char **environ;

int in_fork(int value) { return value * 3 + 1; }
int in_parent(int value) { return value * 5 + 2; }
int in_vfork(int value) { return value * 7 + 3; }
int in_clone(int value) { return value * 11 + 4; }
int in_program(int value) { return value * 13 + 5; }
int in_thread(int value) { return value * 17 + 6; }
int at_end(int value) { return value * 19 + 7; }

static void report(const char *what, pid_t child) {
    int status = 0;
    pid_t found;
    do
        found = waitpid(child, &status, __WALL);
    while (found < 0);
    printf("%s: %s %d\n", what, WIFEXITED(status) ? "code" : "signal", WIFEXITED(status) ? WEXITSTATUS(status) : WTERMSIG(status));
    fflush(stdout);
}

static int clone_body(void *argument) { return in_clone(in_parent(*(int *)argument)) % 100; }

static void *exec_body(void *argument) {
    char **arguments = argument;
    execl(arguments[0], arguments[0], "program", (char *)0);
    abort();
}

static void *fork_body(void *argument) {
    int value = in_thread(*(int *)argument);
    pid_t child = fork();
    if (child == 0)
        _exit((in_fork(value) + in_thread(value)) % 100);
    report("fork in a thread", child);
    return 0;
}

static void *last_body(void *argument) {
    printf("last thread: %d\n", at_end(in_thread(3)));
    exit(9);
}

int main(int count, char **arguments) {
    int one = 1;
    pthread_t thread;
    if (count > 1 && strcmp(arguments[1], "program") == 0) {
        printf("program: %d\n", in_program(2));
        return in_program(3);
    }
    pid_t child = fork();
    if (child == 0)
        _exit(in_fork(in_parent(1)) % 100);
    report("fork", child);
    printf("parent: %d %d\n", in_parent(2), in_fork(2));
    fflush(stdout);
    volatile int seen = 0;
    if ((child = vfork()) == 0) {
        seen = in_vfork(2);
        _exit(5);
    }
    report("vfork", child);
    printf("vfork gave %d, now %d\n", seen, in_vfork(3));
    fflush(stdout);
    char *program[] = {arguments[0], "program", 0};
    posix_spawn(&child, arguments[0], 0, 0, program, environ);
    report("spawn", child);
    char *stack = malloc(1 << 16);
    child = clone(clone_body, stack + (1 << 16), CLONE_VM, &one);
    report("clone with memory", child);
    child = clone(clone_body, stack + (1 << 16), SIGCHLD, &one);
    report("clone without memory", child);
    pthread_create(&thread, 0, fork_body, &one);
    pthread_join(thread, 0);
    for (int round = 0; round < 8; round++) {
        if ((child = fork()) == 0) {
            if (round % 2)
                execl(arguments[0], arguments[0], "program", (char *)0);
            _exit(at_end(round) % 100);
        }
        report("round", child);
    }
    if ((child = fork()) == 0) {
        // An exec by a thread that does not lead: the leader dies of it.
        pthread_create(&thread, 0, exec_body, arguments);
        for (;;)
            pause();
    }
    report("exec in a thread", child);
    if ((child = fork()) == 0)
        raise(SIGKILL);
    report("killed", child);
    if ((child = fork()) == 0) {
        // The leader ends first.
        pthread_create(&thread, 0, last_body, 0);
        syscall(SYS_exit, 0);
    }
    report("leader first", child);
    return at_end(1);
}

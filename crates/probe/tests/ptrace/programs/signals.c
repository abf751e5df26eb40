// What a tracer could spoil: its own SIGTRAP, real-time signals, and what a parent sees of a stopped child.
#define _GNU_SOURCE
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

int before(int value) { return value * 3 + 1; }
int between(int value) { return value * 5 + 2; }
int after(int value) { return value * 7 + 3; }

static volatile int traps, codes, queued;

static void on_trap(int signal, siginfo_t *info, void *context) {
    traps++;
    codes = codes * 10 + (info->si_code > 0 ? 1 : 2);
}

static void on_queued(int signal, siginfo_t *info, void *context) { queued = queued * 10 + info->si_value.sival_int; }

static void breakpoint(void) {
#if defined(__x86_64__)
    __asm__ volatile("int3");
#elif defined(__aarch64__)
    raise(SIGTRAP);
#endif
}

int main(int count, char **arguments) {
    struct sigaction action = {.sa_sigaction = on_trap, .sa_flags = SA_SIGINFO};
    sigaction(SIGTRAP, &action, 0);
    action.sa_sigaction = on_queued;
    sigaction(SIGRTMIN + 3, &action, 0);
    printf("before %d\n", before(1));
    breakpoint();
    raise(SIGTRAP);
    printf("between %d\n", between(1));
    breakpoint();
    for (int value = 1; value < 4; value++)
        sigqueue(getpid(), SIGRTMIN + 3, (union sigval){.sival_int = value});
    printf("traps %d codes %d queued %d\n", traps, codes, queued);
    fflush(stdout);
    int status, gate[2];
    char byte = 0;
    if (pipe(gate) != 0)
        abort();
    pid_t child = fork();
    if (child == 0) {
        raise(SIGSTOP);
        // Not before the parent has seen that it goes on.
        if (read(gate[0], &byte, 1) != 1)
            abort();
        _exit(after(1));
    }
    waitpid(child, &status, WUNTRACED);
    printf("stopped %d by %d\n", WIFSTOPPED(status), WSTOPSIG(status));
    kill(child, SIGCONT);
    waitpid(child, &status, WCONTINUED);
    printf("continued %d\n", WIFCONTINUED(status));
    if (write(gate[1], &byte, 1) != 1)
        abort();
    waitpid(child, &status, 0);
    printf("code %d\n", WEXITSTATUS(status));
    printf("after %d\n", after(2));
    fflush(stdout);
    if (count > 1 && strcmp(arguments[1], "die") == 0) {
        signal(SIGTRAP, SIG_DFL);
        breakpoint();
    }
    if (count > 1 && strcmp(arguments[1], "wait") == 0)
        while (getchar() != EOF) {
        }
    return 4;
}

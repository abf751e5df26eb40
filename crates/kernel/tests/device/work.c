/*
 * What programs do with a kernel that a shell does not: threads, signals, timers, memory, sockets, files with holes. Each part prints one line,
 * which is the same on every kernel that works. "work stress N" has N processes write, fork and wait at the same time.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/file.h>
#include <sys/inotify.h>
#include <sys/mman.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/timerfd.h>
#include <sys/uio.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static void say(const char *name, const char *form, ...) {
    va_list values;
    va_start(values, form);
    printf("@@work %s ", name);
    vprintf(form, values);
    printf("\n");
    fflush(stdout);
    va_end(values);
}

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t turn = PTHREAD_COND_INITIALIZER;
static long sum, turns;

static void *adder(void *argument) {
    for (long i = 0; i < 5000; i++) {
        pthread_mutex_lock(&lock);
        sum += (long)argument;
        pthread_mutex_unlock(&lock);
    }
    return NULL;
}

static void *player(void *argument) {
    long mine = (long)argument;
    pthread_mutex_lock(&lock);
    while (turns < 200) {
        while (turns % 2 != mine && turns < 200) pthread_cond_wait(&turn, &lock);
        turns++;
        pthread_cond_broadcast(&turn);
    }
    pthread_mutex_unlock(&lock);
    return NULL;
}

static void threads(void) {
    pthread_t ids[6];
    for (long i = 0; i < 4; i++) pthread_create(&ids[i], NULL, adder, (void *)(i + 1));
    for (int i = 0; i < 4; i++) pthread_join(ids[i], NULL);
    for (long i = 0; i < 2; i++) pthread_create(&ids[i], NULL, player, (void *)i);
    for (int i = 0; i < 2; i++) pthread_join(ids[i], NULL);
    say("threads", "%ld %d", sum, turns >= 200);
}

static volatile sig_atomic_t caught, value;

static void handler(int number, siginfo_t *info, void *context) {
    (void)context;
    caught += number;
    value = info->si_value.sival_int;
}

static void fault(int number) {
    (void)number;
    _exit(42);
}

static void signals(void) {
    struct sigaction action = {.sa_sigaction = handler, .sa_flags = SA_SIGINFO};
    sigaction(SIGUSR1, &action, NULL);
    sigaction(SIGRTMIN, &action, NULL);
    sigaction(SIGALRM, &action, NULL);
    sigset_t some, old;
    sigemptyset(&some);
    sigaddset(&some, SIGUSR1);
    sigprocmask(SIG_BLOCK, &some, &old);
    raise(SIGUSR1);
    int before = caught;
    sigset_t waiting;
    sigpending(&waiting);
    sigprocmask(SIG_SETMASK, &old, NULL);
    sigqueue(getpid(), SIGRTMIN, (union sigval){.sival_int = 77});
    struct itimerval soon = {.it_value = {.tv_usec = 10000}};
    sigprocmask(SIG_BLOCK, &some, &old);
    setitimer(ITIMER_REAL, &soon, NULL);
    sigdelset(&old, SIGALRM);
    while (caught < SIGUSR1 + SIGRTMIN + SIGALRM) sigsuspend(&old);
    pid_t child = fork();
    if (child == 0) {
        stack_t stack = {.ss_sp = malloc(65536), .ss_size = 65536};
        sigaltstack(&stack, NULL);
        struct sigaction dead = {.sa_handler = fault, .sa_flags = SA_ONSTACK};
        sigaction(SIGSEGV, &dead, NULL);
        *(volatile int *)8 = 1;
    }
    int status;
    waitpid(child, &status, 0);
    say("signals", "%d %d %d %d %d", before, sigismember(&waiting, SIGUSR1), caught, value, WEXITSTATUS(status));
}

static void timers(void) {
    int timer = timerfd_create(CLOCK_MONOTONIC, 0), event = eventfd(3, 0), set = epoll_create1(0);
    struct itimerspec soon = {.it_value = {.tv_nsec = 5000000}};
    struct epoll_event wanted = {.events = EPOLLIN, .data.fd = timer}, got[2];
    int failed = epoll_ctl(set, EPOLL_CTL_ADD, timer, &wanted);
    wanted.data.fd = event;
    failed |= epoll_ctl(set, EPOLL_CTL_ADD, event, &wanted);
    int first = epoll_wait(set, got, 2, 1000) == 1 && got[0].data.fd == event;
    uint64_t count = 0, ticks = 0;
    failed |= read(event, &count, 8) != 8;
    timerfd_settime(timer, 0, &soon, NULL);
    int second = epoll_wait(set, got, 2, 5000) == 1 && got[0].data.fd == timer;
    failed |= read(timer, &ticks, 8) != 8;
    struct timespec one, other, pause = {.tv_nsec = 2000000};
    clock_gettime(CLOCK_MONOTONIC, &one);
    nanosleep(&pause, NULL);
    clock_gettime(CLOCK_MONOTONIC, &other);
    long passed = (other.tv_sec - one.tv_sec) * 1000000000L + other.tv_nsec - one.tv_nsec;
    say("timers", "%d %d %d %d %d %d", failed, first, second, (int)count, ticks >= 1, passed >= 2000000);
}

static void sockets(void) {
    int pair[2], sent = -1;
    if (socketpair(AF_UNIX, SOCK_STREAM, 0, pair)) return say("sockets", "no pair %d", errno);
    int file = open("/proc/version", O_RDONLY);
    char room[CMSG_SPACE(sizeof(int))] = {0}, text[8] = "fd";
    struct iovec part = {text, sizeof text};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = room, .msg_controllen = sizeof room};
    struct cmsghdr *head = CMSG_FIRSTHDR(&message);
    head->cmsg_level = SOL_SOCKET, head->cmsg_type = SCM_RIGHTS, head->cmsg_len = CMSG_LEN(sizeof(int));
    memcpy(CMSG_DATA(head), &file, sizeof file);
    long out = sendmsg(pair[0], &message, 0), in = recvmsg(pair[1], &message, 0);
    memcpy(&sent, CMSG_DATA(CMSG_FIRSTHDR(&message)), sizeof sent);
    char version[6] = "";
    long length = read(sent, version, 5);
    struct sockaddr_un name = {.sun_family = AF_UNIX, .sun_path = "/tmp/work.socket"};
    int server = socket(AF_UNIX, SOCK_STREAM, 0), client = socket(AF_UNIX, SOCK_STREAM, 0);
    int bound = bind(server, (void *)&name, sizeof name) | listen(server, 1) | connect(client, (void *)&name, sizeof name);
    int other = accept(server, NULL, NULL);
    shutdown(client, SHUT_WR);
    long end = read(other, text, 1);
    say("sockets", "%ld %ld %ld %s %d %ld", out, in, length, version, bound, end);
}

static void memory(void) {
    size_t bytes = 8 << 20;
    char *area = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    for (size_t i = 0; i < bytes; i += 4096) area[i] = (char)(i >> 12);
    pid_t child = fork();
    if (child == 0) {
        for (size_t i = 0; i < bytes; i += 8192) area[i]++;
        _exit(area[8192] == 3 ? 7 : 8);
    }
    int status;
    waitpid(child, &status, 0);
    int same = area[8192] == 2;
    madvise(area, bytes / 2, MADV_DONTNEED);
    char *moved = mremap(area, bytes, 2 * bytes, MREMAP_MAYMOVE);
    int zero = moved[4096] == 0, kept = moved[bytes - 4096] == (char)((bytes - 4096) >> 12);
    mprotect(moved, 4096, PROT_READ);
    say("memory", "%d %d %d %d %d", WEXITSTATUS(status), same, zero, kept, munmap(moved, 2 * bytes));
}

static void files(const char *folder) {
    char path[256], other[256];
    snprintf(path, sizeof path, "%s/holes", folder);
    int file = open(path, O_RDWR | O_CREAT | O_TRUNC, 0644);
    if (file < 0) return say("files", "%s: %d", folder, errno);
    char text[4096];
    memset(text, 'x', sizeof text);
    int wrong = pwrite(file, text, sizeof text, 1 << 20) != sizeof text;
    struct iovec parts[2] = {{"one", 3}, {"two", 3}};
    wrong |= writev(file, parts, 2) != 6;
    long hole = lseek(file, 100, SEEK_HOLE), data = lseek(file, 8192, SEEK_DATA);
    wrong |= fallocate(file, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 1 << 20, 4096) != 0;
    long punched = lseek(file, 8192, SEEK_DATA);
    char *map = mmap(NULL, 1 << 20, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    int mapped = map != MAP_FAILED;
    if (mapped) {
        memcpy(map + 5000, "mapped", 6);
        wrong |= msync(map, 1 << 20, MS_SYNC) != 0;
        char back[7] = "";
        wrong |= pread(file, back, 6, 5000) != 6 || strcmp(back, "mapped");
    }
    wrong |= ftruncate(file, 6000) != 0 || fsync(file) != 0 || fdatasync(file) != 0;
    struct stat about;
    fstat(file, &about);
    wrong |= flock(file, LOCK_EX) != 0;
    int watch = inotify_init1(IN_NONBLOCK);
    inotify_add_watch(watch, folder, IN_CREATE | IN_MOVED_TO);
    for (int i = 0; i < 300; i++) {
        snprintf(path, sizeof path, "%s/many%d", folder, i);
        int one = open(path, O_WRONLY | O_CREAT, 0600);
        wrong |= write(one, path, strlen(path)) < 0;
        close(one);
        snprintf(other, sizeof other, "%s/renamed%d", folder, i / 2);
        wrong |= rename(path, other) != 0;
    }
    char events[4096];
    say("files", "%d %ld %ld %ld %d %ld %d", wrong, hole, data, punched, mapped, (long)about.st_size,
        read(watch, events, sizeof events) > 0);
}

static void stress(int processes) {
    for (int i = 0; i < processes; i++) {
        if (fork() == 0) {
            char path[64], text[1000];
            memset(text, 'a' + i, sizeof text);
            snprintf(path, sizeof path, "/tmp/stress%d", i);
            int file = open(path, O_RDWR | O_CREAT | O_TRUNC, 0600), failed = 0;
            for (int round = 0; round < 60; round++) {
                failed |= write(file, text, sizeof text) != sizeof text;
                int ends[2];
                failed |= pipe(ends);
                if (fork() == 0) {
                    char *area = mmap(NULL, 1 << 18, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
                    memset(area, round, 1 << 18);
                    _exit(write(ends[1], area, 1) != 1);
                }
                char got = -1;
                int status = 1;
                failed |= read(ends[0], &got, 1) != 1 || got != round;
                wait(&status);
                failed |= status;
                close(ends[0]), close(ends[1]);
            }
            _exit(failed);
        }
    }
    int status, wrong = 0;
    while (wait(&status) > 0) wrong += status != 0;
    say("stress", "%d of %d wrong", wrong, processes);
}

int main(int count, char **words) {
    if (count > 2 && !strcmp(words[1], "stress")) return stress(atoi(words[2])), 0;
    if (count > 2 && !strcmp(words[1], "files")) return files(words[2]), 0;
    threads();
    signals();
    timers();
    sockets();
    memory();
    files("/tmp");
    return 0;
}

// THREADS threads call 64 functions in an order given by a seed, all at once, and print a sum that depends on every call.
// With a second argument every few calls are made by a new thread. Then it waits for the end of its input, alive for whoever wants to look.
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#define THREADS 8
#define CALLS 400

#define ONE(n) uint64_t f##n(uint64_t value) { return (value ^ (n * 2654435761u)) * (2 * n + 1) + (value >> 7); }
#define FOUR(n) ONE(n##0) ONE(n##1) ONE(n##2) ONE(n##3)
#define NAME(n) f##n,
#define NAMES(n) NAME(n##0) NAME(n##1) NAME(n##2) NAME(n##3)
#define ALL(X) X(1) X(2) X(3) X(4) X(5) X(6) X(7) X(8) X(9) X(10) X(11) X(12) X(13) X(14) X(15) X(16)

ALL(FOUR)

static uint64_t (*functions[])(uint64_t) = {ALL(NAMES)};
static pthread_barrier_t barrier;
static uint64_t seed;
static int churn;

// Calls from `call` up to `end`, and what they come to.
struct piece {
    uint64_t state, sum;
    unsigned call, end;
};

static void *calls(void *argument) {
    struct piece *piece = argument;
    for (; piece->call < piece->end; piece->call++) {
        piece->state = piece->state * 6364136223846793005u + 1442695040888963407u;
        unsigned which = piece->call < 128 ? (piece->call + seed) % 64 : (piece->state >> 58);
        piece->sum = piece->sum * 31 + functions[which](piece->sum + piece->call);
    }
    return 0;
}

static void *work(void *argument) {
    struct piece piece = {.state = seed * 6364136223846793005u + (uint64_t)(uintptr_t)argument};
    pthread_barrier_wait(&barrier);
    // All begin with the same functions: they run into the same breakpoints at once.
    while (piece.call < CALLS) {
        piece.end = churn ? piece.call + 8 : CALLS;
        pthread_t thread;
        if (churn && pthread_create(&thread, 0, calls, &piece) == 0)
            pthread_join(thread, 0);
        else
            calls(&piece);
    }
    return (void *)(uintptr_t)piece.sum;
}

int main(int count, char **arguments) {
    seed = count > 1 ? strtoull(arguments[1], 0, 10) : 1;
    churn = count > 2;
    pthread_t threads[THREADS];
    pthread_barrier_init(&barrier, 0, THREADS);
    for (uintptr_t thread = 0; thread < THREADS; thread++)
        pthread_create(&threads[thread], 0, work, (void *)thread);
    uint64_t sum = 0;
    for (int thread = 0; thread < THREADS; thread++) {
        void *result;
        pthread_join(threads[thread], &result);
        sum = sum * 31 + (uintptr_t)result;
    }
    printf("%016llx\n", (unsigned long long)sum);
    fflush(stdout);
    char byte;
    while (read(0, &byte, 1) > 0) {
    }
    return (int)(sum % 100);
}

/*
 * check.h - what the test programs share: a check that ends the program, threads that start
 * together, a bounded run, an event to park on, and a small generator of random numbers.
 *
 * A program exits 0 when all holds, and else 1 with one line that says what did not. A run that
 * hangs is a failure too: run_seconds() arms an alarm well beyond the time it was given.
 */
#ifndef RSF_TESTS_CHECK_H
#define RSF_TESTS_CHECK_H

#include <inttypes.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define DEFAULT_SECONDS 1.0
#ifndef HANG_SECONDS
#define HANG_SECONDS 60 /* beyond the time given: then the run counts as hung */
#endif

/* Ends the program at once: other threads may be in any state. */
__attribute__((format(printf, 3, 4), noreturn)) static inline void
fail(const char *file, int line, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    fprintf(stderr, "%s:%d: ", file, line);
    vfprintf(stderr, format, args);
    fputc('\n', stderr);
    va_end(args);
    _exit(1);
}

/* CHECK(condition, format, ...): what the message says is what was violated. */
#define CHECK(condition, ...)                                                                      \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            fail(__FILE__, __LINE__, __VA_ARGS__);                                                 \
        }                                                                                          \
    } while (0)

#define CHECK_EQUAL(got, wanted, what)                                                             \
    do {                                                                                           \
        int64_t got_ = (int64_t)(got), wanted_ = (int64_t)(wanted);                                \
        CHECK(got_ == wanted_, "%s: %" PRId64 ", not %" PRId64, what, got_, wanted_);              \
    } while (0)

/* ------------------------------------------------------------------ time */

static inline double
now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static inline void
hung(int signal_number)
{
    static const char message[] = "no end in sight: a wake, a signal or an element was lost\n";
    (void)signal_number;
    (void)!write(2, message, sizeof message - 1);
    _exit(1);
}

/* The seconds asked for on the command line; arms the alarm. */
static inline double
run_seconds(int argc, char **argv)
{
    double seconds = argc > 1 ? strtod(argv[1], NULL) : DEFAULT_SECONDS;
    CHECK(seconds > 0, "usage: %s [seconds > 0]", argv[0]);
    signal(SIGALRM, hung);
    alarm((unsigned)seconds + HANG_SECONDS);
    return seconds;
}

/* ------------------------------------------------------------------ random numbers */

/* splitmix64: any seed will do, one state per thread. */
static inline uint64_t
random_u64(uint64_t *state)
{
    uint64_t z = (*state += UINT64_C(0x9e3779b97f4a7c15));
    z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
    return z ^ (z >> 31);
}

/* 0 .. bound-1 */
static inline uint64_t
random_below(uint64_t *state, uint64_t bound)
{
    return random_u64(state) % bound;
}

/* Lets others run, now and then: widens the windows that the stress programs look for. */
static inline void
stumble(uint64_t *state)
{
    if (random_below(state, 16) == 0) {
        sched_yield();
    }
}

/* ------------------------------------------------------------------ threads */

#define MAX_THREADS 8

/* Threads wait here for each other, once. (macOS has no pthread_barrier_t.) */
typedef struct {
    pthread_mutex_t lock;
    pthread_cond_t all_there;
    int missing;
} gate;

static inline void
gate_pass(gate *g)
{
    pthread_mutex_lock(&g->lock);
    if (--g->missing == 0) {
        pthread_cond_broadcast(&g->all_there);
    }
    while (g->missing > 0) {
        pthread_cond_wait(&g->all_there, &g->lock);
    }
    pthread_mutex_unlock(&g->lock);
}

typedef struct {
    void (*body)(void *shared, int me);
    void *shared;
    int me;
    gate *start;
} thread_start;

static inline void *
thread_main(void *argument)
{
    thread_start *start = argument;
    gate_pass(start->start);
    start->body(start->shared, start->me);
    return NULL;
}

/* Runs body(shared, 0) .. body(shared, n-1) in n threads that start together; waits for all. */
static inline void
run_threads(int n, void (*body)(void *shared, int me), void *shared)
{
    pthread_t threads[MAX_THREADS];
    thread_start starts[MAX_THREADS];
    CHECK(n <= MAX_THREADS, "too many threads");
    gate together = {PTHREAD_MUTEX_INITIALIZER, PTHREAD_COND_INITIALIZER, n};
    for (int i = 0; i < n; i++) {
        starts[i] = (thread_start){body, shared, i, &together};
        CHECK(pthread_create(&threads[i], NULL, thread_main, &starts[i]) == 0, "no thread");
    }
    for (int i = 0; i < n; i++) {
        pthread_join(threads[i], NULL);
    }
}

/* ------------------------------------------------------------------ an event */

/*
 * What a backend parks on. One that wants to wait takes a ticket first; every set() after that ends
 * the wait, of all who wait.
 */
typedef struct {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    uint64_t sets;
} event;

#define EVENT_INIT {PTHREAD_MUTEX_INITIALIZER, PTHREAD_COND_INITIALIZER, 0}

static inline void
event_set(event *e)
{
    pthread_mutex_lock(&e->lock);
    e->sets++;
    pthread_cond_broadcast(&e->changed);
    pthread_mutex_unlock(&e->lock);
}

static inline uint64_t
event_ticket(event *e)
{
    pthread_mutex_lock(&e->lock);
    uint64_t ticket = e->sets;
    pthread_mutex_unlock(&e->lock);
    return ticket;
}

static inline void
event_wait(event *e, uint64_t ticket)
{
    pthread_mutex_lock(&e->lock);
    while (e->sets == ticket) {
        pthread_cond_wait(&e->changed, &e->lock);
    }
    pthread_mutex_unlock(&e->lock);
}

#endif /* RSF_TESTS_CHECK_H */

/*
 * closed.h - the frame of a closed program: a few threads, assertions, no input, no output, an end.
 *
 * A program defines THREADS, includes this, and then defines three functions: prepare() makes the
 * shared state, body(me) runs once in each thread, finish() checks what they left. Every loop is
 * bounded. Sizes are macros, for -D.
 *
 * Built plainly, it is C11 with POSIX threads and runs once: for a model checker that explores all
 * executions of a program, and for ThreadSanitizer.
 *
 *     cc -std=c11 -I csrc -pthread csrc/tests/model/ring_park.c
 *
 * Built with -DRSF_MODEL='"machine.h"', it runs many times on the simulated machine of
 * tests/machine. READ and WRITE are accesses to plain memory: it must never race.
 */
#ifndef RSF_TESTS_CLOSED_H
#define RSF_TESTS_CLOSED_H

#include <stdbool.h>
#include <stdint.h>

static void prepare(void);
static void body(int me);
static void finish(void);

#if defined(RSF_MODEL)

#include RSF_MODEL

#define READ(p) machine_read(p)
#define WRITE(p, v) machine_write(p, v)
#define EXPECT(condition, what) machine_check(condition, what)

int
main(int argc, char **argv)
{
    static const machine_program program = {THREADS, prepare, body, finish};
    return machine_main(argc, argv, &program);
}

#else

#undef NDEBUG
#include <assert.h>
#include <pthread.h>

#define READ(p) (*(p))
#define WRITE(p, v) ((void)(*(p) = (v)))
#define EXPECT(condition, what) assert((condition) && (what))

static void *
closed__run(void *me)
{
    body(*(int *)me);
    return NULL;
}

int
main(void)
{
    pthread_t threads[THREADS];
    int numbers[THREADS];
    prepare();
    for (int i = 0; i < THREADS; i++) {
        numbers[i] = i;
        if (pthread_create(&threads[i], NULL, closed__run, &numbers[i]) != 0) {
            return 2;
        }
    }
    for (int i = 0; i < THREADS; i++) {
        if (pthread_join(threads[i], NULL) != 0) {
            return 2;
        }
    }
    finish();
    return 0;
}

#endif

#endif /* RSF_TESTS_CLOSED_H */

/*
 * model.h - runs small programs on a simulated machine that is as weak as C11 allows (almost).
 *
 * x86 hides most missing orders, and TSan sees only those that leave plain memory unprotected. Here
 * every accessor of rsf_atomic.h is simulated: a location keeps all values it ever had, and a load
 * may return any that the thread has not been told to be outdated. What a thread has been told is
 * its view; a release attaches it to the value, an acquire takes it over. A scheduler picks threads
 * and values at random, from a seed: the same seed is the same run. A run fails when a check does,
 * when two accesses to plain memory race, or when every thread that is left waits for a wake.
 *
 * Weaker than hardware in most respects, stronger than C11 in two: a location's values are in the
 * order in which the stores ran (no two threads' stores are seen in swapped order), and no load
 * sees a store that has not run yet.
 */
#ifndef RSF_TESTS_MODEL_H
#define RSF_TESTS_MODEL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define MODEL_THREADS 4

/* Orders, as bits. */
#define MODEL_rlx 0
#define MODEL_acq 1
#define MODEL_rel 2
#define MODEL_acqrel 3
#define MODEL_sc 7

/* ------------------------------------------------------------------ what the accessors call */

uint64_t model_load(const void *p, size_t size, int order);
void model_store(void *p, size_t size, uint64_t value, int order);

enum model_operation { MODEL_EXCHANGE, MODEL_ADD, MODEL_OR };
uint64_t model_modify(void *p, size_t size, enum model_operation operation, uint64_t operand,
                      int order);
bool model_compare(void *p, size_t size, uint64_t *expected, uint64_t desired, int order);

#define MODEL__LOAD(suffix, type, order)                                                           \
    static inline type rsf_load_##order##_##suffix(const type *p)                                  \
    {                                                                                              \
        return (type)model_load(p, sizeof(type), MODEL_##order);                                   \
    }

#define MODEL__STORE(suffix, type, order)                                                          \
    static inline void rsf_store_##order##_##suffix(type *p, type v)                               \
    {                                                                                              \
        model_store(p, sizeof(type), (uint64_t)v, MODEL_##order);                                  \
    }

#define MODEL__MODIFY(name, operation, sign, suffix, type, order)                                  \
    static inline type rsf_##name##_##order##_##suffix(type *p, type v)                            \
    {                                                                                              \
        return (type)model_modify(p, sizeof(type), operation, sign(uint64_t) v, MODEL_##order);    \
    }

#define MODEL__RMW(suffix, type, order)                                                            \
    MODEL__MODIFY(exchange, MODEL_EXCHANGE, +, suffix, type, order)                                \
    MODEL__MODIFY(fetch_add, MODEL_ADD, +, suffix, type, order)                                    \
    MODEL__MODIFY(fetch_sub, MODEL_ADD, -, suffix, type, order)                                    \
    MODEL__MODIFY(fetch_or, MODEL_OR, +, suffix, type, order)                                      \
    static inline bool rsf_cas_##order##_##suffix(type *p, type *expected, type desired)           \
    {                                                                                              \
        uint64_t wide = (uint64_t)*expected;                                                       \
        bool done = model_compare(p, sizeof(type), &wide, (uint64_t)desired, MODEL_##order);       \
        *expected = (type)wide;                                                                    \
        return done;                                                                               \
    }

#define RSF__DEFINE_ATOMICS(suffix, type)                                                          \
    MODEL__LOAD(suffix, type, rlx)                                                                 \
    MODEL__LOAD(suffix, type, acq)                                                                 \
    MODEL__LOAD(suffix, type, sc)                                                                  \
    MODEL__STORE(suffix, type, rlx)                                                                \
    MODEL__STORE(suffix, type, rel)                                                                \
    MODEL__STORE(suffix, type, sc)                                                                 \
    MODEL__RMW(suffix, type, rlx)                                                                  \
    MODEL__RMW(suffix, type, acq)                                                                  \
    MODEL__RMW(suffix, type, rel)                                                                  \
    MODEL__RMW(suffix, type, acqrel)                                                               \
    MODEL__RMW(suffix, type, sc)

/* ------------------------------------------------------------------ what the programs call */

/* Plain memory: the run fails if an access races with another one. */
uint64_t model_read(const uint64_t *p);
void model_write(uint64_t *p, uint64_t value);

/* Ends the run as failed, unless the condition holds. */
void model_check(bool condition, const char *what);

/* Waiting in a loop for another thread: lets one run. */
void model_pause(void);

/* An event, as a backend parks on: see check.h. */
typedef struct {
    unsigned sets;
    unsigned number; /* set by model_event_init */
} model_event;

void model_event_init(model_event *event);
void model_event_set(model_event *event);
unsigned model_event_ticket(model_event *event);
void model_event_wait(model_event *event, unsigned ticket);

/*
 * A scenario: `prepare` makes the shared state before the threads, `body` runs in each of them,
 * `finish` checks what they left, as somebody who has joined them all.
 */
typedef struct {
    const char *name;
    int threads;
    void (*prepare)(void);
    void (*body)(int me);
    void (*finish)(void);
} model_scenario;

/* The main function of a model: runs each scenario from many seeds. Exits 1 at the first failure. */
int model_main(int argc, char **argv, const model_scenario *scenarios, size_t n);

#endif /* RSF_TESTS_MODEL_H */

/*
 * machine.h - runs small programs on a simulated machine that is as weak as C11 allows (almost).
 *
 * x86 hides most missing orders, and TSan sees only those that leave plain memory unprotected. Here
 * every accessor of rsf_atomic.h is simulated: a location keeps all values it ever had, and a load
 * may return any that the thread does not know to be outdated. What a thread knows is
 * its view; a release attaches it to the value, an acquire takes it over. A scheduler picks threads
 * and values at random, from a seed: the same seed is the same run. A run fails when a check does,
 * or when two accesses to plain memory race.
 *
 * Weaker than hardware in most respects, stronger than C11 in two: a location's values are in the
 * order in which the stores ran (no two threads' stores are seen in swapped order), and no load
 * sees a store that has not run yet.
 */
#ifndef RSF_TESTS_MACHINE_H
#define RSF_TESTS_MACHINE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define MACHINE_THREADS 4

/* Orders, as bits. */
#define MACHINE_rlx 0
#define MACHINE_acq 1
#define MACHINE_rel 2
#define MACHINE_acq_rel 3
#define MACHINE_sc 7

/* ------------------------------------------------------------------ what the accessors call */

uint64_t machine_load(const void *p, size_t size, int order);
void machine_store(void *p, size_t size, uint64_t value, int order);

enum machine_operation { MACHINE_EXCHANGE, MACHINE_ADD, MACHINE_OR };
uint64_t machine_modify(void *p, size_t size, enum machine_operation operation, uint64_t operand,
                        int order);
bool machine_compare(void *p, size_t size, uint64_t *expected, uint64_t desired, int order);

#define MACHINE__LOAD(suffix, type, order)                                                         \
    static inline type rsf_load_##order##_##suffix(const type *p)                                  \
    {                                                                                              \
        return (type)machine_load(p, sizeof(type), MACHINE_##order);                               \
    }

#define MACHINE__STORE(suffix, type, order)                                                        \
    static inline void rsf_store_##order##_##suffix(type *p, type v)                               \
    {                                                                                              \
        machine_store(p, sizeof(type), (uint64_t)v, MACHINE_##order);                              \
    }

#define MACHINE__MODIFY(name, operation, sign, suffix, type, order)                                \
    static inline type rsf_##name##_##order##_##suffix(type *p, type v)                            \
    {                                                                                              \
        return (type)machine_modify(p, sizeof(type), operation, sign(uint64_t) v,                  \
                                    MACHINE_##order);                                              \
    }

#define MACHINE__RMW(suffix, type, order)                                                          \
    MACHINE__MODIFY(exchange, MACHINE_EXCHANGE, +, suffix, type, order)                            \
    MACHINE__MODIFY(fetch_add, MACHINE_ADD, +, suffix, type, order)                                \
    MACHINE__MODIFY(fetch_sub, MACHINE_ADD, -, suffix, type, order)                                \
    MACHINE__MODIFY(fetch_or, MACHINE_OR, +, suffix, type, order)                                  \
    static inline bool rsf_cas_##order##_##suffix(type *p, type *expected, type desired)           \
    {                                                                                              \
        uint64_t wide = (uint64_t)*expected;                                                       \
        bool done = machine_compare(p, sizeof(type), &wide, (uint64_t)desired, MACHINE_##order);   \
        *expected = (type)wide;                                                                    \
        return done;                                                                               \
    }

#define RSF__DEFINE_ATOMICS(suffix, type)                                                          \
    MACHINE__LOAD(suffix, type, rlx)                                                               \
    MACHINE__LOAD(suffix, type, acq)                                                               \
    MACHINE__LOAD(suffix, type, sc)                                                                \
    MACHINE__STORE(suffix, type, rlx)                                                              \
    MACHINE__STORE(suffix, type, rel)                                                              \
    MACHINE__STORE(suffix, type, sc)                                                               \
    MACHINE__RMW(suffix, type, rlx)                                                                \
    MACHINE__RMW(suffix, type, acq)                                                                \
    MACHINE__RMW(suffix, type, rel)                                                                \
    MACHINE__RMW(suffix, type, acq_rel)                                                            \
    MACHINE__RMW(suffix, type, sc)

/* ------------------------------------------------------------------ what the programs call */

/* Plain memory: the run fails if an access races with another one. */
uint64_t machine_read(const uint64_t *p);
void machine_write(uint64_t *p, uint64_t value);

/* Ends the run as failed, unless the condition holds. */
void machine_check(bool condition, const char *what);

/*
 * The main function of a program on this machine: `prepare` makes the shared state before the
 * threads, `body` runs in each of them, `finish` checks what they left, like a thread that joined
 * them all. Many runs, each from a seed of its own. Returns 1 at the first that fails.
 */
typedef struct {
    int threads;
    void (*prepare)(void);
    void (*body)(int me);
    void (*finish)(void);
} machine_program;

int machine_main(int argc, char **argv, const machine_program *program);

#endif /* RSF_TESTS_MACHINE_H */

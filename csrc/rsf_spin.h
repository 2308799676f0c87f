/*
 * rsf_spin.h - how a waiter uses its baton: the spins, and the clock that ends them.
 *
 *     if (rsf_spin_asleep(baton, spin)) sleep until woken
 *     rsf_spin_take(baton, spin)
 *     look for work
 *
 * The core has no clock of its own elsewhere, so this stands apart from the baton.
 */
#ifndef RSF_SPIN_H
#define RSF_SPIN_H

#include "rsf_baton.h"

#if defined(_WIN32)
#include <windows.h>
#else
#include <time.h>
#endif

/* Of a monotonic clock, for intervals. */
static inline int64_t
rsf__nanoseconds(void)
{
#if defined(_WIN32)
    LARGE_INTEGER ticks, per_second;
    QueryPerformanceCounter(&ticks);
    QueryPerformanceFrequency(&per_second);
    return (int64_t)((double)ticks.QuadPart * 1e9 / (double)per_second.QuadPart);
#else
    struct timespec now;
    (void)clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
#endif
}

/*
 * Waiter only. Looks for a call, for `spin` nanoseconds; the clock, read between two looks, is
 * pause enough. True: none came; whoever calls next is told to wake: sleep until then.
 */
static inline bool
rsf_spin_asleep(rsf_baton *baton, int64_t spin)
{
    if (rsf_baton_is_called(baton)) {
        return false;
    }
    int64_t until = rsf__nanoseconds() + spin;
    while (!rsf_baton_is_called(baton)) {
        if (rsf__nanoseconds() >= until) {
            return rsf_baton_prepare_sleep(baton);
        }
    }
    return false;
}

/* Waiter only, when it was called. Looks, as long again, for its turn, and takes. */
static inline void
rsf_spin_take(rsf_baton *baton, int64_t spin)
{
    if (!rsf_baton_is_here(baton)) {
        int64_t until = rsf__nanoseconds() + spin;
        while (!rsf_baton_is_here(baton) && rsf__nanoseconds() < until) {
        }
    }
    rsf_baton_take(baton);
}

#endif /* RSF_SPIN_H */

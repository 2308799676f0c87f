/*
 * rsf_demand.h - the demand counter: how many elements a subscriber has asked for and not yet had.
 *
 * One 64-bit word. Values >= 0 are demand; it saturates at RSF_UNBOUNDED and stays there (§3.17).
 * Values < 0 are sentinels, reached once and never left: everything after is a NOP (§3.6, §3.7).
 *
 *     open (0 .. UNBOUNDED) --cancel-->    RSF_CANCELLED
 *                           --terminate--> RSF_TERMINATED
 *
 * Every function may be called by any thread, and is lock-free: of several that run at once, at
 * least one completes in a bounded number of its own steps.
 *
 * Synchronisation. All changes are read-modify-write operations on this one word, so they form a
 * chain in which each reads the one before it. R1 pairs with A1: what a thread wrote before its
 * change is seen by each thread that reads this change or a later one. So request() can hand work
 * over: the requester that finds 0 and takes over the drain sees what the fulfilling thread left
 * behind, and the fulfilling thread sees what the requester prepared. A call that changes nothing
 * acquires, too: the thread that gets `cancelled` sees why. An exchange that fails does not;
 * therefore each attempt begins with a look.
 */
#ifndef RSF_DEMAND_H
#define RSF_DEMAND_H

#include "rsf_atomic.h"

#define RSF_UNBOUNDED INT64_MAX
#define RSF_CANCELLED INT64_C(-1)
#define RSF_TERMINATED INT64_C(-2)
#define RSF_EXCEEDED INT64_C(-3) /* an answer of rsf_demand_fulfil, never a stored value */

/* Padding against neighbours is the owner's choice: most counters live beside what they count. */
typedef struct rsf_demand {
    int64_t value;
} rsf_demand;

/* Before any other thread knows the counter. Pre: initial >= 0. */
static inline void
rsf_demand_init(rsf_demand *demand, int64_t initial)
{
    /* Relaxed: what hands the counter to another thread also publishes this store. */
    rsf_store_rlx_i64(&demand->value, initial);
}

/* The value, sentinels included. Any thread; wait-free. */
static inline int64_t
rsf_demand_load(const rsf_demand *demand)
{
    return rsf_load_acq_i64(&demand->value); /* A1 */
}

/*
 * Adds n to the demand, saturating. Pre: n >= 1 (the caller answers for §3.9).
 * Returns the demand before: 0 tells the caller that the producer may have to be woken.
 * Returns a sentinel, and changes nothing, once cancelled or terminated. Any thread; lock-free.
 */
static inline int64_t
rsf_demand_request(rsf_demand *demand, int64_t n)
{
    for (;;) {
        int64_t before =
            rsf_load_acq_i64(&demand->value); /* A1, for the answers without a change */
        if (before < 0 || before == RSF_UNBOUNDED) {
            return before;
        }
        int64_t after = before > RSF_UNBOUNDED - n ? RSF_UNBOUNDED : before + n;
        if (RSF_LIKELY(rsf_cas_acq_rel_i64(&demand->value, &before, after))) { /* R1 A1 */
            return before;
        }
    }
}

/*
 * Takes n delivered elements off the demand. Pre: n >= 0.
 * Returns what is left (RSF_UNBOUNDED stays), or a sentinel, or RSF_EXCEEDED when fewer than n
 * were asked for (§1.1); in the last two cases nothing changes. Any thread; lock-free.
 */
static inline int64_t
rsf_demand_fulfil(rsf_demand *demand, int64_t n)
{
    for (;;) {
        int64_t before =
            rsf_load_acq_i64(&demand->value); /* A1, for the answers without a change */
        if (before < 0 || before == RSF_UNBOUNDED) {
            return before;
        }
        if (RSF_UNLIKELY(before < n)) {
            return RSF_EXCEEDED;
        }
        int64_t after = before - n;
        if (RSF_LIKELY(rsf_cas_acq_rel_i64(&demand->value, &before, after))) { /* R1 A1 */
            return after;
        }
    }
}

/* The first sentinel wins. Returns the value before: >= 0 if this call did it. Lock-free. */
static inline int64_t
rsf__demand_end(rsf_demand *demand, int64_t sentinel)
{
    for (;;) {
        int64_t before =
            rsf_load_acq_i64(&demand->value); /* A1, for the answers without a change */
        if (before < 0 || rsf_cas_acq_rel_i64(&demand->value, &before, sentinel)) { /* R1 A1 */
            return before;
        }
    }
}

/*
 * The subscriber's end (§3.5, §3.6). Returns the value before: >= 0 means that this call did it,
 * a sentinel that it was over already. Any thread; lock-free.
 */
static inline int64_t
rsf_demand_cancel(rsf_demand *demand)
{
    return rsf__demand_end(demand, RSF_CANCELLED);
}

/*
 * The publisher's end (§1.6, §1.7). Returns the value before: >= 0 means that this call did it,
 * a sentinel that it was over already. Any thread; lock-free.
 */
static inline int64_t
rsf_demand_terminate(rsf_demand *demand)
{
    return rsf__demand_end(demand, RSF_TERMINATED);
}

#endif /* RSF_DEMAND_H */

/*
 * rsf_baton.h - waiting for one's turn: a little while in a spin, then asleep.
 *
 * One thread waits; any thread calls it when it has left something for it, elsewhere (in a queue).
 * A call has two steps, which may be one:
 *
 *     announce    there is something to do, but the caller still holds what the waiter needs to do
 *                 it (an interpreter's lock): be awake, and keep off yet
 *     give        it is the waiter's turn
 *
 *     waiter                                     caller
 *       take; look for work: none                  leave work
 *       spin while not is_called, not for long     if announce: wake the waiter
 *       if prepare_sleep: sleep until woken        ... let go of what the waiter needs
 *       spin while not is_here, not for long       if give: wake the waiter
 *       take; look for work
 *
 * A call says only "look": the waiter may find nothing (somebody else called, too, or it had found
 * the work already), and looks again whenever it was called. No call is lost: all changes are
 * read-modify-write operations on one word, so they form a chain in which each reads the one before
 * it. A call that comes before `take` has published what its caller left to it (R1 pairs with A1;
 * the changes in between pass it on, whatever their order), and so the look after it finds the work;
 * one that comes later is found by prepare_sleep, or finds the waiter asleep. For that a call must
 * change the word though it may be called already.
 *
 * The events that threads sleep on are the backend's; so is the clock that ends a spin.
 */
#ifndef RSF_BATON_H
#define RSF_BATON_H

#include "rsf_atomic.h"

#ifndef RSF_BATON_ORDER_CALL
#define RSF_BATON_ORDER_CALL rel
#endif
#ifndef RSF_BATON_ORDER_TAKE
#define RSF_BATON_ORDER_TAKE acq
#endif

#define RSF__BATON_COMING UINT32_C(1)
#define RSF__BATON_HERE UINT32_C(2)
#define RSF__BATON_ASLEEP UINT32_C(4)
#define RSF__BATON_CALLED (RSF__BATON_COMING | RSF__BATON_HERE)

typedef struct rsf_baton {
    uint32_t state;
} rsf_baton;

/* Before any other thread knows the baton. */
static inline void
rsf_baton_init(rsf_baton *baton)
{
    /* Relaxed: whatever hands the baton to another thread also publishes this store. */
    rsf_store_rlx_u32(&baton->state, 0);
}

static inline bool
rsf__baton_call(rsf_baton *baton, uint32_t how)
{
    uint32_t before = rsf_fetch_or(u32, RSF_BATON_ORDER_CALL, &baton->state, how); /* R1 */
    return (before & RSF__BATON_ASLEEP) != 0 && (before & RSF__BATON_CALLED) == 0;
}

/*
 * Any thread; lock-free. The waiter is to be awake, and keep off until `give`, or for as long as it
 * sees fit. True: it sleeps, or is about to: wake it. Of the calls that find it so one is told.
 */
static inline bool
rsf_baton_announce(rsf_baton *baton)
{
    return rsf__baton_call(baton, RSF__BATON_COMING);
}

/* Any thread; lock-free. It is the waiter's turn. The answer is that of rsf_baton_announce. */
static inline bool
rsf_baton_give(rsf_baton *baton)
{
    return rsf__baton_call(baton, RSF__BATON_HERE);
}

/* Waiter only; wait-free. Whether it was called since it last took. */
static inline bool
rsf_baton_is_called(const rsf_baton *baton)
{
    /* Relaxed: before it looks for work the waiter takes, which acquires. */
    return (rsf_load_rlx_u32(&baton->state) & RSF__BATON_CALLED) != 0;
}

/* Waiter only; wait-free. Whether it was given its turn since it last took. */
static inline bool
rsf_baton_is_here(const rsf_baton *baton)
{
    /* Relaxed: as above. */
    return (rsf_load_rlx_u32(&baton->state) & RSF__BATON_HERE) != 0;
}

/*
 * Waiter only; lock-free. True: nobody called; whoever does next is told to wake: sleep until then.
 * False: it was called: do not sleep.
 */
static inline bool
rsf_baton_prepare_sleep(rsf_baton *baton)
{
    /* Relaxed: it publishes nothing, and what it finds is taken before the next look. */
    uint32_t before = rsf_fetch_or_rlx_u32(&baton->state, RSF__BATON_ASLEEP);
    return (before & RSF__BATON_CALLED) == 0;
}

/*
 * Waiter only, and not between a prepare_sleep that was true and its wake; wait-free. Forgets the
 * calls so far. To be followed by a look for work.
 */
static inline void
rsf_baton_take(rsf_baton *baton)
{
    (void)rsf_exchange(u32, RSF_BATON_ORDER_TAKE, &baton->state, 0); /* A1 */
}

#endif /* RSF_BATON_H */

/*
 * baton_calls.c - callers leave work, each in a cell of its own, and call; the waiter looks, and
 * sleeps when nobody called. It sleeps once, and for good; if nobody was told to wake it, its last
 * look must have found all that was left.
 *
 * The first caller announces, leaves more, and gives; the others only give.
 */
#ifndef THREADS
#define THREADS 3
#endif
#ifndef LOOKS
#define LOOKS 4
#endif

#include "closed.h"
#include "rsf_baton.h"

static rsf_baton baton;
static uint64_t left[THREADS]; /* relaxed: the calls alone order it */
static uint64_t seen[THREADS];
static bool asleep;
static uint64_t told[THREADS];

static void
prepare(void)
{
    rsf_baton_init(&baton);
    asleep = false;
    for (int i = 0; i < THREADS; i++) {
        left[i] = seen[i] = told[i] = 0;
    }
}

static void
call(int me)
{
    rsf_store_rlx_u64(&left[me], 1);
    if (me == 1) {
        told[me] += rsf_baton_announce(&baton) ? 1 : 0;
        rsf_store_rlx_u64(&left[me], 2);
    }
    told[me] += rsf_baton_give(&baton) ? 1 : 0;
}

static void
wait(void)
{
    for (int i = 0; i < LOOKS; i++) {
        rsf_baton_take(&baton);
        for (int caller = 1; caller < THREADS; caller++) {
            seen[caller] = rsf_load_rlx_u64(&left[caller]);
        }
        if (!rsf_baton_is_called(&baton) && rsf_baton_prepare_sleep(&baton)) {
            asleep = true;
            return;
        }
    }
}

static void
body(int me)
{
    if (me == 0) {
        wait();
    } else {
        call(me);
    }
}

static void
finish(void)
{
    uint64_t all_told = 0;
    bool all_seen = true;
    for (int caller = 1; caller < THREADS; caller++) {
        all_told += told[caller];
        all_seen = all_seen && seen[caller] == rsf_load_rlx_u64(&left[caller]);
    }
    EXPECT(all_told <= (asleep ? 1 : 0), "told to wake who does not sleep, or twice");
    EXPECT(!asleep || all_told == 1 || all_seen, "the waiter sleeps beside work");
}

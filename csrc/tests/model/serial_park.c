/*
 * serial_park.c - a thread parks when there is no room: no wake is lost. It does so once, and for
 * good; if nobody woke it, a wake was lost, as the mailbox is empty in the end.
 */
#define THREADS 3
#ifndef CAPACITY
#define CAPACITY 1
#endif

#include "closed.h"
#include "serial_sides.h"

static void
prepare(void)
{
    prepare_serial();
}

static void
body(int me)
{
    for (int i = 0; i < ELEMENTS; i++) {
        if (signal_next(me, accepted[me] * THREADS + (uint64_t)me) == RSF_SERIAL_OK) {
            accepted[me]++;
        } else {
            parked[me] = me == 0 && rsf_serial_prepare_wait(&serial);
            return;
        }
    }
}

static void
finish(void)
{
    bool any_woken = false;
    for (int i = 0; i < THREADS; i++) {
        any_woken = any_woken || woken[i];
    }
    expect_all_delivered();
    EXPECT(!parked[0] || any_woken, "a thread sleeps beside an empty mailbox");
}

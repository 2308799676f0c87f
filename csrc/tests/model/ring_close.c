/*
 * ring_close.c - a third thread closes in the middle: once the consumer knows that the ring is
 * drained, nothing comes any more, and why it was closed can be read.
 */
#define THREADS 3
#ifndef TRIES
#define TRIES 2
#endif

#include "closed.h"
#include "ring_sides.h"

static uint64_t reason; /* published by the close */
static bool drained;

static void
prepare(void)
{
    prepare_ring();
    reason = 0;
    drained = false;
}

static void
body(int me)
{
    if (me == 0) {
        for (int i = 0; i < TRIES; i++) {
            EXPECT(rsf_ring_enter_producer(&ring), "somebody else is inside");
            if (!rsf_ring_is_closed(&ring)) {
                (void)put(1);
            }
            rsf_ring_leave_producer(&ring);
        }
    } else if (me == 1) {
        for (int i = 0; i <= TRIES && !drained; i++) {
            (void)take(CAPACITY);
            drained = rsf_ring_is_drained(&ring);
        }
        if (drained) {
            EXPECT(READ(&reason) == 1, "drained, and the reason is not there");
        }
        if (rsf_ring_is_closed(&ring)) {
            EXPECT(READ(&reason) == 1, "closed, and the reason is not there");
        }
    } else {
        WRITE(&reason, 1);
        rsf_ring_close(&ring);
    }
}

static void
finish(void)
{
    EXPECT(!drained || READ(&got_next) == READ(&put_next), "an element came after the end");
    take_the_rest();
    EXPECT(rsf_ring_is_drained(&ring), "not drained in the end");
}

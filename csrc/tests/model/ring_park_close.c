/*
 * ring_park_close.c - the ring is closed while both sides park: both are woken, or see the close.
 */
#define THREADS 3
#ifndef CAPACITY
#define CAPACITY 1
#endif

#include "closed.h"
#include "ring_sides.h"

static bool parked[2], woken[2];

static void
prepare(void)
{
    prepare_ring();
    for (int i = 0; i < 2; i++) {
        parked[i] = woken[i] = false;
    }
}

static void
body(int me)
{
    if (me == 0) {
        /* A second element would not fit, and no consumer takes the first. */
        (void)put(CAPACITY);
        parked[0] = rsf_ring_prepare_wait_producer(&ring);
    } else if (me == 1) {
        parked[1] = rsf_ring_prepare_wait_consumer(&ring);
    } else {
        rsf_ring_close(&ring);
        woken[0] = rsf_ring_take_waiting_producer(&ring);
        woken[1] = rsf_ring_take_waiting_consumer(&ring);
    }
}

static void
finish(void)
{
    EXPECT(!parked[0] || woken[0], "the producer sleeps at a closed ring");
    EXPECT(!parked[1] || woken[1], "the consumer sleeps at a closed ring");
    take_the_rest();
}

/*
 * ring_park.c - both sides park when there is nothing to do: no wake is lost. A side
 * parks once, and for good; if nobody woke it, there must be nothing that it could have done.
 */
#define THREADS 2
#ifndef TRIES
#define TRIES 2
#endif
#ifndef CAPACITY
#define CAPACITY 1
#endif

#include "closed.h"
#include "ring_sides.h"

static bool parked[THREADS], woken[THREADS];

static void
prepare(void)
{
    prepare_ring();
    for (int i = 0; i < THREADS; i++) {
        parked[i] = woken[i] = false;
    }
}

static void
produce(void)
{
    for (int i = 0; i < TRIES; i++) {
        if (put(1) == 0) {
            parked[0] = rsf_ring_prepare_wait_producer(&ring);
            return;
        }
        woken[1] = rsf_ring_take_waiting_consumer(&ring) || woken[1];
    }
}

static void
consume(void)
{
    for (int i = 0; i < TRIES; i++) {
        if (take(1) == 0) {
            parked[1] = rsf_ring_prepare_wait_consumer(&ring);
            return;
        }
        woken[0] = rsf_ring_take_waiting_producer(&ring) || woken[0];
    }
}

static void
body(int me)
{
    if (me == 0) {
        produce();
    } else {
        consume();
    }
}

static void
finish(void)
{
    uint64_t size = rsf_ring_size(&ring);
    EXPECT(!parked[0] || woken[0] || size == CAPACITY, "the producer sleeps beside free slots");
    EXPECT(!parked[1] || woken[1] || size == 0, "the consumer sleeps beside elements");
    take_the_rest();
}

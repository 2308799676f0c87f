/*
 * ring_park.c - both sides park when there is nothing to do: no wake is lost. A side that parks stays
 * there; if its event is not set, there must be nothing that it could have done.
 */
#define THREADS 2
#ifndef TRIES
#define TRIES 3
#endif
#ifndef CAPACITY
#define CAPACITY 2
#endif

#ifndef FILLED
#define FILLED 0 /* elements there before the threads */
#endif

#include "closed.h"
#include "ring_sides.h"

static bool parked[THREADS];
static uint32_t events[THREADS];

static void
prepare(void)
{
    prepare_ring();
    (void)put(FILLED);
    for (int i = 0; i < THREADS; i++) {
        parked[i] = false;
        events[i] = 0;
    }
}

/* One move of a side, and what follows it. The event may still be set from an earlier wake. */
static void
move(int me, uint64_t (*try)(uint64_t), bool (*prepare_wait)(rsf_ring *),
     bool (*take_waiting)(rsf_ring *))
{
    for (int i = 0; i < TRIES && !parked[me]; i++) {
        if (try(1) == 0) {
            (void)rsf_exchange_acq_u32(&events[me], 0);
            parked[me] = prepare_wait(&ring);
        } else if (take_waiting(&ring)) {
            rsf_store_rel_u32(&events[1 - me], 1);
        }
    }
}

static void
body(int me)
{
    if (me == 0) {
        move(me, put, rsf_ring_prepare_wait_producer, rsf_ring_take_waiting_consumer);
    } else {
        move(me, take, rsf_ring_prepare_wait_consumer, rsf_ring_take_waiting_producer);
    }
}

static void
finish(void)
{
    uint64_t size = rsf_ring_size(&ring);
    EXPECT(!parked[0] || events[0] == 1 || size == CAPACITY,
           "the producer sleeps beside free slots");
    EXPECT(!parked[1] || events[1] == 1 || size == 0, "the consumer sleeps beside elements");
    take_the_rest();
}

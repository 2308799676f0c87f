/*
 * ring_size.c - anybody may ask for the size: never less than none, never more than the capacity.
 */
#define THREADS 3
#ifndef TRIES
#define TRIES 3
#endif
#ifndef CAPACITY
#define CAPACITY 1
#endif

#include "closed.h"
#include "ring_sides.h"

static void
prepare(void)
{
    prepare_ring();
}

static void
body(int me)
{
    for (int i = 0; i < TRIES; i++) {
        if (me == 0) {
            (void)put(1);
        } else if (me == 1) {
            (void)take(1);
        } else {
            EXPECT(rsf_ring_size(&ring) <= CAPACITY, "more elements than the capacity");
        }
    }
}

static void
finish(void)
{
    take_the_rest();
}

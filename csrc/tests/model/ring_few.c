/*
 * ring_few.c - the size of a ring that only one element ever passed is never more than one: a tail
 * older than the head would say otherwise.
 */
#define THREADS 2
#ifndef TRIES
#define TRIES 3
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
    if (me == 0) {
        (void)put(1);
        (void)take(1);
        return;
    }
    for (int i = 0; i < TRIES; i++) {
        EXPECT(rsf_ring_size(&ring) <= 1, "more elements than there ever were");
    }
}

static void
finish(void)
{
    take_the_rest();
}

/*
 * ring_turns.c - both sides change hands: who gets in is the only one, and knows all that the last
 * one did.
 */
#define THREADS 4
#ifndef TRIES
#define TRIES 2
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
        if (me % 2 == 0 && rsf_ring_enter_producer(&ring)) {
            (void)put(1);
            rsf_ring_leave_producer(&ring);
        } else if (me % 2 == 1 && rsf_ring_enter_consumer(&ring)) {
            (void)take(1);
            rsf_ring_leave_consumer(&ring);
        }
    }
}

static void
finish(void)
{
    take_the_rest();
}

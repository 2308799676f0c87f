/*
 * ring_transfer.c - one producer, one consumer: what is put in comes out, whole and in order.
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
    for (int i = 0; i < TRIES; i++) {
        (void)(me == 0 ? put(1) : take(CAPACITY));
    }
}

static void
finish(void)
{
    take_the_rest();
}

/*
 * ring_end.c - the producer closes: a consumer that sees it, and then nothing, has seen everything.
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
        (void)put(CAPACITY);
        rsf_ring_close(&ring);
        return;
    }
    for (int i = 0; i < TRIES; i++) {
        bool closed = rsf_ring_is_closed(&ring);
        if (take(CAPACITY) == 0 && closed) {
            EXPECT(READ(&got_next) == CAPACITY, "the end came before an element");
            return;
        }
    }
}

static void
finish(void)
{
    take_the_rest();
}

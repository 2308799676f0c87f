/*
 * serial_park.c - threads park when there is no room: no wake is lost. Each parks once
 * and for good; if nobody woke it, a wake was lost, as the mailbox is empty in the end.
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
            wait_for_room(me);
            return;
        }
    }
}

static void
finish(void)
{
    expect_all_delivered();
    expect_all_woken();
}

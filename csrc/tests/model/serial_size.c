/*
 * serial_size.c - anybody may ask for the size; of a mailbox that only one element ever passed it
 * is never more than one.
 */
#define THREADS 2
#define TRIES 3

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
    if (me == 0) {
        signal_all(me);
        return;
    }
    for (int i = 0; i < TRIES; i++) {
        EXPECT(rsf_serial_size(&serial) <= 1, "more elements than were signalled");
    }
}

static void
finish(void)
{
    expect_all_delivered();
}

/*
 * serial_ends.c - two terminal signals at once, beside an element: one wins, its error is delivered,
 * once and last; the other writes nothing.
 */
#define THREADS 3

#include "closed.h"
#include "serial_sides.h"

static bool won[THREADS];

static void
prepare(void)
{
    prepare_serial();
    for (int i = 0; i < THREADS; i++) {
        won[i] = false;
    }
}

static void
body(int me)
{
    if (me == 0) {
        signal_all(me);
        return;
    }
    won[me] = rsf_serial_latch_terminal(&serial);
    if (won[me]) {
        WRITE(&error, 1);
        rsf_serial_publish_terminal(&serial, RSF_SERIAL_ERROR);
        enter_and_drain();
    }
    EXPECT(rsf_serial_is_latched(&serial), "a terminal signal, and no latch");
    if (rsf_serial_terminal(&serial) != RSF_SERIAL_NONE) {
        EXPECT(READ(&error) == 1, "a terminal signal, and its error is not there");
    }
}

static void
finish(void)
{
    expect_all_delivered();
    EXPECT(won[1] != won[2], "not one terminal signal");
    EXPECT(READ(&terminals) == 1, "no terminal signal");
}

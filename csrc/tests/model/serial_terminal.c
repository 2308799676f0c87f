/*
 * serial_terminal.c - an error among the elements: it comes once and last, and what was accepted
 * comes before it.
 */
#define THREADS 3

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
    if (me < 2) {
        signal_all(me);
        return;
    }
    EXPECT(rsf_serial_latch_terminal(&serial), "the first terminal signal");
    WRITE(&error, 1);
    rsf_serial_publish_terminal(&serial, RSF_SERIAL_ERROR);
    enter_and_drain();
}

static void
finish(void)
{
    expect_all_delivered();
    EXPECT(READ(&terminals) == 1, "no terminal signal");
}

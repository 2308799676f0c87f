/*
 * serial_cancel.c - a cancel among the elements: what is accepted is delivered or dropped, and
 * who sees the cancel sees what led to it.
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
    WRITE(&reason, 1);
    EXPECT(rsf_serial_cancel(&serial), "the first cancel");
    enter_and_drain();
}

static void
finish(void)
{
    expect_all_delivered();
}

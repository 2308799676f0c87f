/*
 * serial_signals.c - several threads signal, one of them past the mailbox: one at a time is
 * delivered, each thread's in its order, and all that was accepted.
 */
#ifndef THREADS
#define THREADS 2
#endif
#ifndef ELEMENTS
#define ELEMENTS 2
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
    signal_all(me);
}

static void
finish(void)
{
    expect_all_delivered();
}

/*
 * serial_room.c - no more elements than fit are ever signalled: no thread finds the mailbox
 * full, however old the tail that it read.
 */
#define THREADS 2
#define CAPACITY 2

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
    EXPECT(signal_next(me, (uint64_t)me) == RSF_SERIAL_OK, "full, and there is room");
    accepted[me] = 1;
}

static void
finish(void)
{
    expect_all_delivered();
}

/*
 * serial_park_end.c - threads park beside a full mailbox that nobody drains, and a terminal signal or
 * a cancel comes: each of them is woken, or does not park.
 */
#define THREADS 3
#define CAPACITY 1
#ifndef CANCEL
#define CANCEL 0
#endif

#include "closed.h"
#include "serial_sides.h"

static void
prepare(void)
{
    prepare_serial();
    EXPECT(queue(0) == RSF_SERIAL_OK,
           "the first element fits"); /* by thread 0, which never entered */
    accepted[0] = 1;
}

static void
body(int me)
{
    if (me < 2) {
        uint64_t index;
        if (rsf_serial_reserve(&serial, &index) == RSF_SERIAL_FULL) {
            wait_for_room(me);
        } else {
            EXPECT(rsf_serial_is_cancelled(&serial) || rsf_serial_is_latched(&serial),
                   "room, and nobody made it");
        }
        return;
    }
#if CANCEL
    WRITE(&reason, 1);
    EXPECT(rsf_serial_cancel(&serial), "the first cancel");
#else
    EXPECT(rsf_serial_latch_terminal(&serial), "the first terminal signal");
    WRITE(&error, 1);
    rsf_serial_publish_terminal(&serial, RSF_SERIAL_ERROR);
#endif
    wake_if_waiting();
}

static void
finish(void)
{
    expect_all_woken();
}

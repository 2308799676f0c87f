/*
 * baton_turn.c - an announced waiter that takes sees what was left before; one that was given its
 * turn, also what the caller did in between. Both are plain memory.
 */
#define THREADS 2

#include "closed.h"
#include "rsf_baton.h"

static rsf_baton baton;
static uint64_t left, held;

static void
prepare(void)
{
    rsf_baton_init(&baton);
    left = held = 0;
}

static void
body(int me)
{
    if (me == 1) {
        WRITE(&left, 1);
        (void)rsf_baton_announce(&baton);
        WRITE(&held, 1);
        (void)rsf_baton_give(&baton);
        return;
    }
    bool called = rsf_baton_is_called(&baton) || !rsf_baton_prepare_sleep(&baton);
    if (called) {
        bool here = rsf_baton_is_here(&baton);
        rsf_baton_take(&baton);
        EXPECT(READ(&left) == 1, "called, and what was left is not there");
        if (here) {
            EXPECT(READ(&held) == 1, "given its turn, and the caller's work is not there");
        }
    }
}

static void
finish(void)
{
    EXPECT(READ(&left) == 1 && READ(&held) == 1, "the caller has ended");
}

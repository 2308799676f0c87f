/*
 * demand_unbounded.c - a thread that learns that demand is unbounded sees what its requester wrote
 * before, though the call that tells it changes nothing.
 */
#define THREADS 4

#include "closed.h"
#include "rsf_demand.h"

static rsf_demand demand;
static uint64_t note;

static void
prepare(void)
{
    rsf_demand_init(&demand, 0);
    note = 0;
}

static void
expect_note(int64_t answer)
{
    if (answer == RSF_UNBOUNDED) {
        EXPECT(READ(&note) == 1, "unbounded, and the note is not there");
    }
}

static void
body(int me)
{
    if (me == 0) {
        WRITE(&note, 1);
        (void)rsf_demand_request(&demand, RSF_UNBOUNDED);
    } else if (me == 1) {
        expect_note(rsf_demand_request(&demand, 1));
    } else if (me == 2) {
        expect_note(rsf_demand_fulfil(&demand, 1));
    } else {
        expect_note(rsf_demand_load(&demand));
    }
}

static void
finish(void)
{
    EXPECT(rsf_demand_load(&demand) == RSF_UNBOUNDED, "unbounded no longer");
}

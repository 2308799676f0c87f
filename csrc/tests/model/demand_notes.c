/*
 * demand_notes.c - a thread that sees demand sees what its requester wrote before, by each call.
 */
#define THREADS 3

#include "closed.h"
#include "rsf_demand.h"

static rsf_demand demand;
static uint64_t note; /* the requester's */

static void
prepare(void)
{
    rsf_demand_init(&demand, 1);
    note = 0;
}

static void
body(int me)
{
    if (me == 0) {
        WRITE(&note, 1);
        (void)rsf_demand_request(&demand, 1);
    } else if (me == 1) {
        if (rsf_demand_load(&demand) > 1) {
            EXPECT(READ(&note) == 1, "demand, and the note is not there");
        }
    } else if (rsf_demand_fulfil(&demand, 1) == 1) {
        EXPECT(READ(&note) == 1, "demand is left, and the note is not there");
    }
}

static void
finish(void)
{
    EXPECT(rsf_demand_load(&demand) == 1, "demand is lost");
}

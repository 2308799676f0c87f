/*
 * demand_ends.c - a cancel, a terminal signal and a request at once: one end wins, and is told what
 * was left.
 */
#define THREADS 3

#include "closed.h"
#include "rsf_demand.h"

static rsf_demand demand;
static uint64_t asked;
static uint64_t ended; /* one more than what was left, by the end that won */

static void
prepare(void)
{
    rsf_demand_init(&demand, 0);
    asked = ended = 0;
}

static void
body(int me)
{
    if (me == 0) {
        asked = rsf_demand_request(&demand, 3) >= 0 ? 3 : 0;
    } else {
        int64_t left = me == 1 ? rsf_demand_cancel(&demand) : rsf_demand_terminate(&demand);
        if (left >= 0) {
            WRITE(&ended, (uint64_t)left + 1);
        }
    }
}

static void
finish(void)
{
    EXPECT(READ(&ended) == asked + 1, "the end does not say what was left");
    EXPECT(rsf_demand_load(&demand) < 0, "open after its end");
}

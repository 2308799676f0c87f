/*
 * demand_again.c - the demand goes up and comes back to what it was: a call whose look was at the old
 * value, and whose exchange finds the new one, sees what was written before it became so again.
 */
#define THREADS 3

#include "closed.h"
#include "rsf_demand.h"

static rsf_demand demand;
static uint64_t note;
static uint32_t again; /* relaxed: it tells that the demand is back, and orders nothing */

static void
prepare(void)
{
    rsf_demand_init(&demand, 2);
    note = 0;
    again = 0;
}

static void
body(int me)
{
    if (me == 0) {
        WRITE(&note, 1);
        if (rsf_demand_request(&demand, 1) >= 0 && rsf_demand_fulfil(&demand, 1) >= 0) {
            rsf_store_rlx_u32(&again, 1);
        }
    } else if (rsf_load_rlx_u32(&again) == 1) {
        int64_t left = me == 1 ? rsf_demand_cancel(&demand) : rsf_demand_fulfil(&demand, 1);
        if (left >= 0) {
            EXPECT(READ(&note) == 1, "the demand is back, and the note is not there");
        }
    }
}

static void
finish(void)
{
    int64_t left = rsf_demand_load(&demand);
    EXPECT(left == RSF_CANCELLED || left == 1 || left == 2, "demand is lost");
}

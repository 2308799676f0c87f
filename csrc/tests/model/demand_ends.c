/*
 * demand_ends.c - a cancel, a terminal signal, a request and a delivery at once: one end wins, and
 * learns what was left; each thread that learns of an end, or of demand, sees what led to it.
 */
#define THREADS 4

#include "closed.h"
#include "rsf_demand.h"

static rsf_demand demand;
static uint64_t asked, fulfilled;
static uint64_t note;      /* written before the request */
static uint64_t reason[2]; /* written before each end */
static uint64_t ended;     /* one more than what was left, by the end that won */

static void
prepare(void)
{
    rsf_demand_init(&demand, 0);
    asked = fulfilled = note = reason[0] = reason[1] = ended = 0;
}

static void
expect_reason(int64_t answer)
{
    if (answer == RSF_CANCELLED || answer == RSF_TERMINATED) {
        EXPECT(READ(&reason[answer == RSF_CANCELLED ? 0 : 1]) == 1, "an end without its reason");
    }
}

static void
body(int me)
{
    if (me < 2) {
        WRITE(&reason[me], 1);
        int64_t left = me == 0 ? rsf_demand_cancel(&demand) : rsf_demand_terminate(&demand);
        if (left >= 0) {
            WRITE(&ended, (uint64_t)left + 1);
        }
        if (left > 0) {
            EXPECT(READ(&note) == 1, "demand is left, and the note is not there");
        }
        expect_reason(left);
    } else if (me == 2) {
        WRITE(&note, 1);
        int64_t before = rsf_demand_request(&demand, 3);
        asked = before >= 0 ? 3 : 0;
        expect_reason(before);
    } else {
        int64_t left = rsf_demand_fulfil(&demand, 1);
        fulfilled = left >= 0 ? 1 : 0;
        expect_reason(left);
    }
}

static void
finish(void)
{
    EXPECT(READ(&ended) == asked - fulfilled + 1, "the end does not say what was left");
    EXPECT(rsf_demand_load(&demand) < 0, "open after its end");
}

/*
 * demand_drain.c - who raises the demand from 0 drains: one at a time, and nothing is left over.
 */
#ifndef THREADS
#define THREADS 3
#endif
#ifndef ROUNDS
#define ROUNDS 1
#endif

#include "closed.h"
#include "rsf_demand.h"

static rsf_demand demand;
static uint64_t delivered; /* the drain's */
static uint64_t asked[THREADS];

static void
prepare(void)
{
    rsf_demand_init(&demand, 0);
    delivered = 0;
    for (int i = 0; i < THREADS; i++) {
        asked[i] = 0;
    }
}

static void
body(int me)
{
    for (int round = 0; round < ROUNDS; round++) {
        int64_t n = 1 + me % 2;
        asked[me] += (uint64_t)n;
        int64_t left = rsf_demand_request(&demand, n) == 0 ? 1 : 0;
        while (left > 0) { /* at most as often as all have asked */
            WRITE(&delivered, READ(&delivered) + 1);
            left = rsf_demand_fulfil(&demand, 1);
            EXPECT(left >= 0, "the drain's demand is gone");
        }
    }
}

static void
finish(void)
{
    uint64_t all = 0;
    for (int i = 0; i < THREADS; i++) {
        all += asked[i];
    }
    EXPECT(READ(&delivered) == all, "a delivery is lost");
    EXPECT(rsf_demand_load(&demand) == 0, "demand is left");
}

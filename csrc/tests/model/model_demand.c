/*
 * model_demand.c - the demand counter on the simulated machine: the hand-over of a drain, and the
 * end of a counter, with plain memory that only the counter protects.
 */
#include "model.h"
#include "rsf_demand.h"

static rsf_demand demand;
static uint64_t delivered; /* the drain's */
static uint64_t note;      /* written before a request, read by who sees it */
static uint64_t ended;     /* the demand that was left, by whoever ended it */
static uint64_t asked[MODEL_THREADS];

static void
prepare(void)
{
    rsf_demand_init(&demand, 0);
    delivered = note = ended = 0;
    for (int i = 0; i < MODEL_THREADS; i++) {
        asked[i] = 0;
    }
}

/* Who raises the demand from 0 drains. */
static void
handover(int me)
{
    for (int round = 0; round < 2; round++) {
        int64_t n = 1 + me % 2;
        asked[me] += (uint64_t)n;
        int64_t left = rsf_demand_request(&demand, n) == 0 ? 1 : 0;
        while (left > 0) {
            model_write(&delivered, model_read(&delivered) + 1);
            left = rsf_demand_fulfil(&demand, 1);
            model_check(left >= 0, "the drain's demand is gone");
        }
    }
}

static void
all_delivered(void)
{
    model_check(model_read(&delivered) == asked[0] + asked[1] + asked[2], "a delivery is lost");
    model_check(rsf_demand_load(&demand) == 0, "demand is left");
}

/* A requester leaves a note; who looks and finds the demand, or its end, may read it. */
static void
notes(int me)
{
    if (me == 0) {
        model_write(&note, 1);
        (void)rsf_demand_request(&demand, 1);
    } else if (me == 1) {
        if (rsf_demand_load(&demand) > 0) {
            model_check(model_read(&note) == 1, "the note is not there");
        }
    } else if (rsf_demand_fulfil(&demand, 1) == 0) {
        model_check(model_read(&note) == 1, "the note is not there");
    }
}

static void
nothing(void)
{
}

/* Two ends race with a request. */
static void
ends(int me)
{
    if (me == 0) {
        asked[0] = rsf_demand_request(&demand, 3) >= 0 ? 3 : 0;
    } else {
        int64_t left = me == 1 ? rsf_demand_cancel(&demand) : rsf_demand_terminate(&demand);
        if (left >= 0) {
            model_write(&ended, (uint64_t)left + 1);
        }
    }
}

static void
one_end(void)
{
    model_check(model_read(&ended) == asked[0] + 1, "the end does not say what was left");
    model_check(rsf_demand_load(&demand) < 0, "open after its end");
}

int
main(int argc, char **argv)
{
    static const model_scenario scenarios[] = {
        {"hand-over", 3, prepare, handover, all_delivered},
        {"notes", 3, prepare, notes, nothing},
        {"ends", 3, prepare, ends, one_end},
    };
    return model_main(argc, argv, scenarios, sizeof scenarios / sizeof scenarios[0]);
}

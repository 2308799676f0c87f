/*
 * stress_demand.c - the demand counter, several threads.
 *
 * What must hold: no request and no delivery is lost or counted twice; the first end wins and
 * freezes the word; an unbounded counter stays so; and the counter hands over: payload and drain
 * state are plain memory that only the counter's orders protect (TSan sees it when they don't).
 */
#include "check.h"
#include "rsf_demand.h"

static double deadline;

/* ---------------------------------------------------------------- totals under contention */

#define REQUESTERS 2
#define FULFILLERS 2

typedef struct {
    rsf_demand demand;
    int64_t requested[REQUESTERS];
    int64_t fulfilled[FULFILLERS];
} totals;

static void
totals_thread(void *shared, int me)
{
    totals *t = shared;
    uint64_t seed = (uint64_t)me;
    while (now() < deadline) {
        for (int i = 0; i < 256; i++) {
            int64_t n = 1 + (int64_t)random_below(&seed, 9);
            if (me < REQUESTERS) {
                CHECK(rsf_demand_request(&t->demand, n) >= 0, "a sentinel out of nowhere");
                t->requested[me] += n;
            } else {
                int64_t left = rsf_demand_fulfil(&t->demand, n);
                CHECK(left >= 0 || left == RSF_EXCEEDED, "a sentinel out of nowhere");
                t->fulfilled[me - REQUESTERS] += left >= 0 ? n : 0;
            }
        }
    }
}

static void
stress_totals(void)
{
    totals t = {.demand = {0}};
    rsf_demand_init(&t.demand, 0);
    run_threads(REQUESTERS + FULFILLERS, totals_thread, &t);
    int64_t left = t.requested[0] + t.requested[1] - t.fulfilled[0] - t.fulfilled[1];
    CHECK_EQUAL(rsf_demand_load(&t.demand), left, "requested minus fulfilled");
}

/* ---------------------------------------------------------------- the hand-over of a drain */

/* Who raises the demand from 0 drains until it is 0 again: nobody else delivers meanwhile. */
typedef struct {
    rsf_demand demand;
    int64_t delivered; /* plain: the drain's */
    int64_t requested[MAX_THREADS];
} handover;

#define HANDOVER_THREADS 3

static void
handover_thread(void *shared, int me)
{
    handover *h = shared;
    uint64_t seed = (uint64_t)me;
    while (now() < deadline) {
        bool stumbling = random_below(&seed, 2) == 0;
        for (int i = 0; i < 64; i++) {
            int64_t n = 1 + (int64_t)random_below(&seed, 4);
            h->requested[me] += n;
            int64_t left = rsf_demand_request(&h->demand, n) == 0 ? 1 : 0;
            while (left > 0) {
                h->delivered++;
                left = rsf_demand_fulfil(&h->demand, 1);
                CHECK(left >= 0, "the drain's own demand is gone");
            }
            if (stumbling) {
                stumble(&seed);
            }
        }
    }
}

static void
stress_handover(void)
{
    handover h = {.delivered = 0};
    rsf_demand_init(&h.demand, 0);
    run_threads(HANDOVER_THREADS, handover_thread, &h);
    CHECK_EQUAL(rsf_demand_load(&h.demand), 0, "all demand is answered");
    CHECK_EQUAL(h.delivered, h.requested[0] + h.requested[1] + h.requested[2],
                "delivered as many as were asked for");
}

/* ---------------------------------------------------------------- what a request publishes */

#define NOTES 1024

typedef struct {
    rsf_demand demand; /* how many notes are written and not read */
    rsf_demand room;   /* how many may be written */
    uint64_t notes[NOTES];
    bool done;
} messages;

static void
message_thread(void *shared, int me)
{
    messages *m = shared;
    rsf_demand *mine = me == 0 ? &m->room : &m->demand;
    rsf_demand *theirs = me == 0 ? &m->demand : &m->room;
    for (uint64_t i = 0;; i++) {
        int64_t allowed;
        while ((allowed = rsf_demand_load(mine)) == 0) {
            sched_yield();
        }
        if (allowed < 0) {
            CHECK_EQUAL(allowed, RSF_TERMINATED, "who ended the run");
            CHECK(me == 1 && m->done, "what was written before the end is seen after it");
            return;
        }
        if (me == 0) {
            m->notes[i % NOTES] = i;
        } else {
            CHECK_EQUAL(m->notes[i % NOTES], i, "the note that the request announced");
        }
        CHECK(rsf_demand_fulfil(mine, 1) >= 0, "own demand is gone");
        CHECK(rsf_demand_request(theirs, 1) >= 0, "the other's demand is over");
        if (me == 0 && (i & 255) == 0 && now() >= deadline) {
            m->done = true;
            while (rsf_demand_load(theirs) != 0) {
                sched_yield();
            }
            CHECK(rsf_demand_terminate(theirs) >= 0, "somebody else ended the run");
            return;
        }
    }
}

static void
stress_messages(void)
{
    static messages m;
    m = (messages){.done = false};
    rsf_demand_init(&m.demand, 0);
    rsf_demand_init(&m.room, NOTES);
    run_threads(2, message_thread, &m);
}

/* ---------------------------------------------------------------- the ends */

/* Two threads request and fulfil until it is over, two others end it, each in its own way. */
#define WORKERS 2
#define ENDERS 2
#define SHORT_WHILE 400 /* turns of an empty loop: about as long as the workers need to start */

typedef struct {
    rsf_demand demand;
    int64_t left[WORKERS]; /* requested minus fulfilled */
    int64_t ended_with[ENDERS];
    uint64_t seed;
} ends;

static const int64_t SENTINELS[ENDERS] = {RSF_CANCELLED, RSF_TERMINATED};

static void
work_to_the_end(ends *e, int me)
{
    for (;;) {
        if (rsf_demand_request(&e->demand, 3) < 0) {
            return;
        }
        e->left[me] += 3;
        if (rsf_demand_fulfil(&e->demand, 2) >= 0) {
            e->left[me] -= 2;
        }
    }
}

static void
end_it(ends *e, int me)
{
    uint64_t seed = e->seed + (uint64_t)me;
    for (uint64_t i = random_below(&seed, SHORT_WHILE); i > 0; i--) {
        (void)rsf_demand_load(&e->demand);
    }
    e->ended_with[me] = me == 0 ? rsf_demand_cancel(&e->demand) : rsf_demand_terminate(&e->demand);
    int64_t after = rsf_demand_load(&e->demand);
    CHECK(after < 0, "open after its end");
    CHECK_EQUAL(rsf_demand_request(&e->demand, 1), after, "the sentinel stays");
    CHECK_EQUAL(rsf_demand_fulfil(&e->demand, 1), after, "the sentinel stays");
}

static void
ends_thread(void *shared, int me)
{
    if (me < WORKERS) {
        work_to_the_end(shared, me);
    } else {
        end_it(shared, me - WORKERS);
    }
}

static void
stress_ends(void)
{
    for (uint64_t round = 0; round == 0 || now() < deadline; round++) {
        ends e = {.seed = round * ENDERS};
        rsf_demand_init(&e.demand, 0);
        run_threads(WORKERS + ENDERS, ends_thread, &e);
        int winner = e.ended_with[0] >= 0 ? 0 : 1;
        CHECK_EQUAL(rsf_demand_load(&e.demand), SENTINELS[winner], "the first end wins");
        CHECK_EQUAL(e.ended_with[1 - winner], SENTINELS[winner], "one end");
        CHECK_EQUAL(e.ended_with[winner], e.left[0] + e.left[1], "the demand that was left");
    }
}

/* ---------------------------------------------------------------- saturation */

static void
saturate_thread(void *shared, int me)
{
    rsf_demand *demand = shared;
    int64_t before = 0;
    for (int i = 0; i < 64; i++) {
        if (me == 0) {
            int64_t left = rsf_demand_fulfil(demand, 1);
            CHECK(left >= 0, "fulfil among huge requests: %" PRId64, left);
        } else {
            int64_t found = rsf_demand_request(demand, RSF_UNBOUNDED / 8);
            CHECK(found >= 0, "overflow: %" PRId64, found);
            CHECK(before != RSF_UNBOUNDED || found == RSF_UNBOUNDED, "unbounded no longer");
            before = found;
        }
    }
}

static void
stress_saturation(void)
{
    do {
        rsf_demand demand;
        rsf_demand_init(&demand, 1000);
        run_threads(3, saturate_thread, &demand);
        CHECK_EQUAL(rsf_demand_load(&demand), RSF_UNBOUNDED, "saturated");
    } while (now() < deadline);
}

int
main(int argc, char **argv)
{
    void (*const parts[])(void) = {
        stress_totals, stress_handover, stress_messages, stress_ends, stress_saturation,
    };
    const size_t n = sizeof parts / sizeof parts[0];
    double seconds = run_seconds(argc, argv);
    for (size_t i = 0; i < n; i++) {
        deadline = now() + seconds / (double)n;
        parts[i]();
    }
    return 0;
}

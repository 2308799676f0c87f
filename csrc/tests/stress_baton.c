/*
 * stress_baton.c - the baton, one waiter and several callers.
 *
 * What must hold: who was called does not sleep, who sleeps is woken once, and every call is
 * followed by a look that finds what its caller left. In `turns` a mailbox in plain memory goes to
 * and fro between the waiter and one caller at a time: only the baton brings it to the waiter, so
 * TSan sees it when the orders do not protect it. In `rounds` several call at once, and nobody again
 * before all that was left is found: a lost call is not made good by a later one, and the run hangs.
 * Each part goes on until the waiter was called in its spin, asleep, and before it was given its
 * turn.
 */
#include "check.h"
#include "rsf_baton.h"

#define CALLERS 3
#define THREADS (1 + CALLERS)
#define SPINS 200  /* of a waiter, before it sleeps or gives up */
#define YIELDS 100 /* of a caller that lets the waiter fall asleep */

/* Where the waiter sleeps: each sleep is ended by one wake. */
typedef struct {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    bool woken;
} bed;

typedef struct {
    rsf_baton baton;
    bed bed;
    /* How often the waiter was called in its spin, asleep, and before it was given its turn. */
    uint64_t spun, slept, announced;
    /* In turns: a caller may have the mailbox (atomic); and the mailbox, which is its owner's. */
    uint32_t to_be_had;
    uint64_t sent;
    uint64_t mail;
    bool over;
    /* In rounds, all atomic: what each caller left, what the waiter found, whether it has ended. */
    uint64_t left[CALLERS];
    uint64_t found;
    uint32_t ended;
} desk;

static double deadline;

static void
desk_init(desk *d)
{
    *d = (desk){.bed = {PTHREAD_MUTEX_INITIALIZER, PTHREAD_COND_INITIALIZER, false}};
    d->to_be_had = 1;
    rsf_baton_init(&d->baton);
}

static void
wake(desk *d)
{
    pthread_mutex_lock(&d->bed.lock);
    CHECK(!d->bed.woken, "two were told to wake it");
    d->bed.woken = true;
    pthread_cond_signal(&d->bed.changed);
    pthread_mutex_unlock(&d->bed.lock);
}

static void
announce(desk *d)
{
    if (rsf_baton_announce(&d->baton)) {
        wake(d);
    }
}

static void
give(desk *d)
{
    if (rsf_baton_give(&d->baton)) {
        wake(d);
    }
}

/* Now and then so long that the waiter falls asleep. */
static void
tarry(uint64_t *seed)
{
    if (random_below(seed, 8) == 0) {
        for (int i = 0; i < YIELDS; i++) {
            sched_yield();
        }
    }
}

/* True when it is so, false after a while. */
static bool
spin(const desk *d, bool (*is_so)(const rsf_baton *))
{
    for (int i = 0; i < SPINS; i++) {
        if (is_so(&d->baton)) {
            return true;
        }
        if (i % 16 == 15) {
            sched_yield();
        }
    }
    return false;
}

static void
wait_for_call(desk *d)
{
    if (spin(d, rsf_baton_is_called)) {
        d->spun++;
    } else if (rsf_baton_prepare_sleep(&d->baton)) {
        pthread_mutex_lock(&d->bed.lock);
        while (!d->bed.woken) {
            pthread_cond_wait(&d->bed.changed, &d->bed.lock);
        }
        d->bed.woken = false;
        pthread_mutex_unlock(&d->bed.lock);
        d->slept++;
    }
    CHECK(rsf_baton_is_called(&d->baton), "awake, and not called");
    if (!rsf_baton_is_here(&d->baton)) {
        d->announced++;
    }
}

/* The waiter has come to its turns in all ways, and the time is over. */
static bool
is_enough(const desk *d)
{
    return d->spun > 0 && d->slept > 0 && d->announced > 0 && now() >= deadline;
}

/* ---------------------------------------------------------------- one caller at a time */

static void
turn_waiter(desk *d)
{
    bool over = false;
    for (uint64_t turn = 1; !over; turn++) {
        wait_for_call(d);
        while (!spin(d, rsf_baton_is_here)) {
            /* Keeps off for as long as it takes. */
        }
        rsf_baton_take(&d->baton);
        CHECK_EQUAL(d->mail, turn, "what came in a turn");
        over = d->over = is_enough(d);
        rsf_store_rel_u32(&d->to_be_had, 1);
    }
}

static void
turn_caller(desk *d, uint64_t seed)
{
    for (;;) {
        if (rsf_exchange_acq_u32(&d->to_be_had, 0) == 0) {
            sched_yield();
            continue;
        }
        if (d->over) {
            rsf_store_rel_u32(&d->to_be_had, 1);
            return;
        }
        tarry(&seed);
        d->sent++;
        if (random_below(&seed, 2) == 0) {
            announce(d);
            stumble(&seed);
        }
        d->mail = d->sent;
        give(d);
    }
}

static void
turn_thread(void *shared, int me)
{
    if (me == 0) {
        turn_waiter(shared);
    } else {
        turn_caller(shared, (uint64_t)me);
    }
}

static void
stress_turns(void)
{
    static desk d;
    desk_init(&d);
    run_threads(THREADS, turn_thread, &d);
    CHECK(!d.bed.woken, "a wake is left");
    CHECK(!rsf_baton_is_called(&d.baton), "a call is left");
}

/* ---------------------------------------------------------------- all callers at once */

static void
round_waiter(desk *d)
{
    bool over = false;
    uint64_t round = 1;
    for (;;) {
        rsf_baton_take(&d->baton);
        uint64_t found = 0;
        for (int i = 0; i < CALLERS; i++) {
            found += rsf_load_rlx_u64(&d->left[i]);
        }
        CHECK(found <= CALLERS * round, "found more than was left");
        if (found == CALLERS * round) {
            round++;
            over = is_enough(d);
            rsf_store_rlx_u32(&d->ended, over);
            rsf_store_rel_u64(&d->found, found);
            if (over) {
                return;
            }
        }
        wait_for_call(d);
        (void)spin(d, rsf_baton_is_here);
    }
}

static void
round_caller(desk *d, int me, uint64_t seed)
{
    for (uint64_t round = 1;; round++) {
        tarry(&seed);
        rsf_store_rlx_u64(&d->left[me], round);
        uint64_t how = random_below(&seed, 3);
        if (how != 0) {
            announce(d);
            stumble(&seed);
        }
        if (how != 1) {
            give(d);
        }
        while (rsf_load_acq_u64(&d->found) < CALLERS * round) {
            sched_yield();
        }
        if (rsf_load_rlx_u32(&d->ended) != 0) {
            return;
        }
    }
}

static void
round_thread(void *shared, int me)
{
    if (me == 0) {
        round_waiter(shared);
    } else {
        round_caller(shared, me - 1, (uint64_t)me);
    }
}

static void
stress_rounds(void)
{
    static desk d;
    desk_init(&d);
    run_threads(THREADS, round_thread, &d);
    CHECK(!d.bed.woken, "a wake is left");
}

int
main(int argc, char **argv)
{
    void (*const parts[])(void) = {stress_turns, stress_rounds};
    const size_t n = sizeof parts / sizeof parts[0];
    double seconds = run_seconds(argc, argv);
    for (size_t i = 0; i < n; i++) {
        deadline = now() + seconds / (double)n;
        parts[i]();
    }
    return 0;
}

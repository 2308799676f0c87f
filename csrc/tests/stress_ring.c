/*
 * stress_ring.c - the ring, several threads.
 *
 * What must hold: nothing lost, doubled, reordered or torn, by one and by many; parked sides are
 * woken; what was accepted before a close by a third thread comes out; producers and consumers
 * that take turns through the guards see each other's work. The slots are plain memory, so TSan
 * sees it when the ring's orders do not protect them. Every other burst is copied as records, and
 * every other one of the rest committed and released element by element.
 */
#include "check.h"
#include "rsf_records.h"
#include "rsf_ring.h"

#define MAX_CAPACITY 64

/* Two words that must agree: an element written by halves is seen as torn. */
typedef struct {
    uint64_t value;
    uint64_t check;
} element;

typedef struct {
    rsf_ring ring;
    element slots[MAX_CAPACITY];
    event data, room; /* the consumer and the producer park here */
    uint64_t max_burst;
    bool park;
    /* Guarded by the ring's overlap guards and nothing else. */
    uint64_t next_put;
    uint64_t next_got;
    /* What close published. */
    const char *reason;
} channel;

static double deadline;

static void
channel_init(channel *p, uint64_t capacity)
{
    *p = (channel){.data = EVENT_INIT, .room = EVENT_INIT, .max_burst = 1};
    CHECK(rsf_ring_init(&p->ring, capacity), "capacity %" PRIu64 " refused", capacity);
    /* Not 0: the indices wrap round 2^64 early in the run. */
    p->ring.tail = p->ring.cached_head = p->ring.head = p->ring.cached_tail = UINT64_MAX - 100;
}

/* Producer: writes and commits up to n elements that count up from `next`; answers how many. */
static uint64_t
put(channel *p, uint64_t next, uint64_t n)
{
    uint64_t first;
    n = rsf_ring_reserve(&p->ring, n, &first);
    element records[MAX_CAPACITY];
    bool copied = (next & 1) != 0;
    bool by_one = (next & 3) == 2;
    for (uint64_t i = 0; i < n; i++) {
        element *slot = copied ? &records[i] : &p->slots[rsf_ring_slot(&p->ring, first + i)];
        rsf_prefetch_write(slot, sizeof *slot);
        *slot = (element){next + i, ~(next + i)};
        if (by_one) {
            rsf_ring_commit_to(&p->ring, first + i + 1);
        }
    }
    if (copied) {
        rsf_records_put(&p->ring, p->slots, sizeof(element), first, n, records);
    }
    if (n > 0 && !by_one) {
        rsf_ring_commit(&p->ring, n);
    }
    return n;
}

/* Consumer: takes up to n elements, which must count up from `next`; answers how many. */
static uint64_t
take(channel *p, uint64_t next, uint64_t n)
{
    uint64_t first;
    n = rsf_ring_peek(&p->ring, n, &first);
    CHECK(n <= p->ring.capacity, "more than the capacity");
    element records[MAX_CAPACITY];
    bool copied = (next & 1) != 0;
    bool by_one = (next & 3) == 2;
    rsf_prefetch_read(p->slots, sizeof p->slots);
    if (copied) {
        rsf_records_take(&p->ring, p->slots, sizeof(element), first, n, records);
    }
    for (uint64_t i = 0; i < n; i++) {
        element *slot = copied ? &records[i] : &p->slots[rsf_ring_slot(&p->ring, first + i)];
        CHECK(slot->check == ~slot->value, "torn element");
        CHECK(slot->value == next + i, "%" PRIu64 " came where %" PRIu64 " was due", slot->value,
              next + i);
        if (by_one) {
            rsf_ring_release_to(&p->ring, first + i + 1);
        }
    }
    if (n > 0 && !by_one) {
        rsf_ring_release(&p->ring, n);
    }
    return n;
}

/* ---------------------------------------------------------------- one producer, one consumer */

static void
park(channel *p, event *e, bool (*prepare)(rsf_ring *))
{
    if (!p->park) {
        sched_yield(); /* and no event: its lock would order what only the ring must order */
        return;
    }
    uint64_t ticket = event_ticket(e);
    if (prepare(&p->ring)) {
        event_wait(e, ticket);
    }
}

static void
produce_all(channel *p)
{
    uint64_t seed = 1;
    for (uint64_t turns = 0; (turns & 63) != 0 || now() < deadline; turns++) {
        uint64_t n = put(p, p->next_put, 1 + random_below(&seed, p->max_burst));
        p->next_put += n;
        if (n > 0 && p->park && rsf_ring_take_waiting_consumer(&p->ring)) {
            event_set(&p->data);
        }
        if (n == 0) {
            park(p, &p->room, rsf_ring_prepare_wait_producer);
        }
    }
    rsf_ring_close(&p->ring);
    if (p->park && rsf_ring_take_waiting_consumer(&p->ring)) {
        event_set(&p->data);
    }
}

static void
consume_all(channel *p)
{
    uint64_t seed = 2;
    for (;;) {
        bool closed = rsf_ring_is_closed(&p->ring);
        uint64_t n = take(p, p->next_got, 1 + random_below(&seed, p->max_burst));
        p->next_got += n;
        if (n > 0 && p->park && rsf_ring_take_waiting_producer(&p->ring)) {
            event_set(&p->room);
        }
        if (n == 0) {
            if (closed) {
                return; /* closed, and then empty: that was all */
            }
            park(p, &p->data, rsf_ring_prepare_wait_consumer);
        }
    }
}

/* A third thread asks for the size all the while. */
static void
watch_all(channel *p)
{
    while (!rsf_ring_is_closed(&p->ring)) {
        uint64_t size = rsf_ring_size(&p->ring);
        CHECK(size <= p->ring.capacity, "size %" PRIu64 " is beyond the capacity", size);
        sched_yield();
    }
}

static void
pair_thread(void *shared, int me)
{
    void (*const roles[])(channel *) = {produce_all, consume_all, watch_all};
    roles[me](shared);
}

static void
stress_pair(bool park)
{
    static const uint64_t capacities[] = {1, 3, 8, MAX_CAPACITY};
    static const uint64_t bursts[] = {1, 1, 5, MAX_CAPACITY};
    const double end = deadline;
    const double part = (end - now()) / 4;
    for (size_t i = 0; i < 4; i++) {
        static channel p;
        channel_init(&p, capacities[i]);
        p.max_burst = bursts[i];
        p.park = park;
        deadline = now() + part;
        run_threads(3, pair_thread, &p);
        CHECK_EQUAL(p.next_got, p.next_put, "elements out, and in");
    }
    deadline = end;
}

static void
stress_spinning(void)
{
    stress_pair(false);
}

static void
stress_parking(void)
{
    stress_pair(true);
}

/* ---------------------------------------------------------------- sides that change hands */

#define TURN_PRODUCERS 2
#define TURN_CONSUMERS 2

static void
turn_thread(void *shared, int me)
{
    channel *p = shared;
    uint64_t seed = (uint64_t)me;
    bool producer = me < TURN_PRODUCERS;
    for (;;) {
        if (producer ? !rsf_ring_enter_producer(&p->ring) : !rsf_ring_enter_consumer(&p->ring)) {
            sched_yield();
            continue;
        }
        bool over = false;
        uint64_t n = 1 + random_below(&seed, 3);
        if (producer) {
            over = rsf_ring_is_closed(&p->ring) || now() >= deadline;
            n = over ? 0 : put(p, p->next_put, n);
            p->next_put += n;
            if (over) {
                rsf_ring_close(&p->ring);
            }
            rsf_ring_leave_producer(&p->ring);
        } else {
            n = take(p, p->next_got, n);
            p->next_got += n;
            over = n == 0 && rsf_ring_is_drained(&p->ring);
            rsf_ring_leave_consumer(&p->ring);
        }
        if (over) {
            return;
        }
        stumble(&seed);
    }
}

static void
stress_turns(void)
{
    static channel p;
    channel_init(&p, 8);
    run_threads(TURN_PRODUCERS + TURN_CONSUMERS, turn_thread, &p);
    CHECK_EQUAL(p.next_got, p.next_put, "elements out, and in");
}

/* ---------------------------------------------------------------- closing by a third thread */

static void
close_thread(void *shared, int me)
{
    channel *p = shared;
    uint64_t seed = p->max_burst * 8 + (uint64_t)me; /* the round, here */
    if (me == 0) {
        bool closed;
        do {
            CHECK(rsf_ring_enter_producer(&p->ring), "somebody else produces");
            closed = rsf_ring_is_closed(&p->ring);
            stumble(&seed); /* the window in which the third thread closes */
            if (!closed) {
                p->next_put += put(p, p->next_put, 1);
            }
            rsf_ring_leave_producer(&p->ring);
        } while (!closed);
    } else if (me == 1) {
        while (!rsf_ring_is_drained(&p->ring)) {
            p->next_got += take(p, p->next_got, 2);
        }
        CHECK(p->reason != NULL, "closed, and no reason to be seen");
    } else {
        for (uint64_t i = random_below(&seed, 40); i > 0; i--) {
            sched_yield();
        }
        p->reason = "a reason";
        rsf_ring_close(&p->ring);
    }
}

static void
stress_close(void)
{
    for (uint64_t round = 1; round == 1 || now() < deadline; round++) {
        static channel p;
        channel_init(&p, 3);
        p.max_burst = round;
        run_threads(3, close_thread, &p);
        CHECK_EQUAL(p.next_got, p.next_put, "what was accepted before the close came out");
    }
}

int
main(int argc, char **argv)
{
    void (*const parts[])(void) = {stress_spinning, stress_parking, stress_turns, stress_close};
    const size_t n = sizeof parts / sizeof parts[0];
    double seconds = run_seconds(argc, argv);
    for (size_t i = 0; i < n; i++) {
        deadline = now() + seconds / (double)n;
        parts[i]();
    }
    return 0;
}

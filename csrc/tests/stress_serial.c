/*
 * stress_serial.c - the signal serializer, several threads.
 *
 * What must hold: delivery is serial (§1.3); each thread's elements come in its order; every
 * element whose reserve said OK is delivered, once, before the terminal signal, which comes once
 * and last (§1.7); never more than `capacity` are on their way; a waiting thread is woken. Slots
 * and the subscriber's state are plain memory: TSan sees it when the orders do not protect them.
 */
#include "check.h"
#include "rsf_serial.h"

#define SIGNALLERS 3
#define MAX_CAPACITY 64

typedef struct {
    uint64_t thread;
    uint64_t ordinal;
    uint64_t check;
} element;

typedef struct {
    rsf_serial serial;
    rsf_serial_cell cells[MAX_CAPACITY];
    element slots[MAX_CAPACITY];
    event room;      /* threads that wait for room park here */
    bool wait;       /* wait for room, instead of trying again */
    bool may_cancel; /* end by a cancel instead of a terminal signal */
    uint64_t on_their_way;
    uint64_t sent[SIGNALLERS]; /* each its thread's, until it has ended */
    const char *error;         /* stored before the terminal signal is published */
    const char *request;       /* stored before the cancel */
    /* The subscriber: plain, touched by the holder of the drain alone. */
    bool delivering;
    uint64_t received[SIGNALLERS];
    uint64_t terminals;
    uint64_t dropped;
    uint64_t round;
} exchange;

static double deadline;

static void
exchange_init(exchange *x, uint64_t capacity)
{
    *x = (exchange){.room = EVENT_INIT};
    CHECK(rsf_serial_init(&x->serial, x->cells, capacity), "capacity refused");
}

/* ---------------------------------------------------------------- delivering */

static void
begin_delivery(exchange *x)
{
    CHECK(!x->delivering, "two deliveries at once (1.3)");
    x->delivering = true;
}

static void
end_delivery(exchange *x)
{
    CHECK(x->delivering, "two deliveries at once (1.3)");
    x->delivering = false;
}

static void
on_next(exchange *x, element e)
{
    begin_delivery(x);
    CHECK(e.check == ~(e.thread ^ e.ordinal) && e.thread < SIGNALLERS, "torn element");
    CHECK(x->terminals == 0, "an element after the terminal signal (1.7)");
    CHECK(e.ordinal == x->received[e.thread],
          "thread %" PRIu64 ": %" PRIu64 " came where %" PRIu64 " was due", e.thread, e.ordinal,
          x->received[e.thread]);
    x->received[e.thread]++;
    end_delivery(x);
}

static void
on_terminal(exchange *x)
{
    begin_delivery(x);
    CHECK(x->terminals == 0, "a second terminal signal (1.7)");
    CHECK(rsf_serial_terminal(&x->serial) == RSF_SERIAL_ERROR && x->error != NULL,
          "the error is not there");
    x->terminals++;
    end_delivery(x);
}

/* Holder: delivers, or drops after a cancel, what is there. */
static void
deliver(exchange *x)
{
    uint64_t index;
    while (rsf_serial_peek(&x->serial, &index)) {
        element e = x->slots[rsf_serial_slot(&x->serial, index)];
        __atomic_fetch_sub(&x->on_their_way, 1, __ATOMIC_RELAXED);
        rsf_serial_release(&x->serial);
        if (x->wait && rsf_serial_take_waiting(&x->serial)) {
            event_set(&x->room);
        }
        if (rsf_serial_is_cancelled(&x->serial)) {
            CHECK(x->request != NULL, "cancelled, and what came before the cancel is not seen");
            x->dropped++;
        } else {
            on_next(x, e);
        }
    }
    if (x->terminals == 0 && rsf_serial_is_drained(&x->serial) &&
        !rsf_serial_is_cancelled(&x->serial)) {
        on_terminal(x);
    }
}

static void
drain_and_leave(exchange *x)
{
    do {
        deliver(x);
    } while (!rsf_serial_leave(&x->serial));
}

/* ---------------------------------------------------------------- signalling */

static int
queue_element(exchange *x, element e, uint64_t *seed)
{
    uint64_t index;
    int answer = rsf_serial_reserve(&x->serial, &index);
    if (answer != RSF_SERIAL_OK) {
        return answer;
    }
    uint64_t others = __atomic_fetch_add(&x->on_their_way, 1, __ATOMIC_RELAXED);
    CHECK(others < x->serial.capacity, "more on their way than the capacity");
    stumble(seed); /* reserved, not yet published: the others must cope */
    x->slots[rsf_serial_slot(&x->serial, index)] = e;
    rsf_serial_publish(&x->serial, index);
    return RSF_SERIAL_OK;
}

/* One signal, past the mailbox if nobody is there, else through it. Answers as reserve does. */
static int
signal_next(exchange *x, element e, uint64_t *seed)
{
    if (random_below(seed, 2) == 0 && rsf_serial_try_acquire(&x->serial)) {
        int answer = RSF_SERIAL_OK;
        deliver(x);
        if (rsf_serial_is_cancelled(&x->serial)) {
            answer = RSF_SERIAL_CANCELLED;
        } else if (rsf_serial_is_idle(&x->serial)) {
            on_next(x, e);
        } else {
            answer = queue_element(x, e, seed);
        }
        drain_and_leave(x);
        return answer;
    }
    int answer = queue_element(x, e, seed);
    if (answer == RSF_SERIAL_OK && rsf_serial_enter(&x->serial)) {
        drain_and_leave(x);
    }
    return answer;
}

static void
wait_for_room(exchange *x)
{
    if (!x->wait) {
        sched_yield(); /* and no event: its lock would order what only the serializer must order */
        return;
    }
    uint64_t ticket = event_ticket(&x->room);
    if (rsf_serial_prepare_wait(&x->serial)) {
        event_wait(&x->room, ticket);
    }
}

/* Signals until it is over; counts what was taken. */
static void
signal_all(exchange *x, int me)
{
    uint64_t seed = x->round * MAX_THREADS + (uint64_t)me;
    for (;;) {
        uint64_t ordinal = x->sent[me];
        element e = {(uint64_t)me, ordinal, ~((uint64_t)me ^ ordinal)};
        switch (signal_next(x, e, &seed)) {
        case RSF_SERIAL_OK:
            x->sent[me]++;
            break;
        case RSF_SERIAL_FULL:
            wait_for_room(x);
            break;
        default:
            return;
        }
    }
}

/* Ends the run, after a while. */
static void
end_all(exchange *x, uint64_t yields)
{
    for (uint64_t i = 0; i < yields; i++) {
        sched_yield();
    }
    if (x->may_cancel) {
        x->request = "enough";
        CHECK(rsf_serial_cancel(&x->serial), "the first cancel");
        sched_yield(); /* a holder may find it before the exchange and the enter below */
    } else {
        CHECK(rsf_serial_latch_terminal(&x->serial), "the first terminal signal");
        sched_yield(); /* latched, not yet published */
        x->error = "boom";
        rsf_serial_publish_terminal(&x->serial, RSF_SERIAL_ERROR);
        sched_yield(); /* published: a holder may find it before the enter below */
        CHECK(!rsf_serial_latch_terminal(&x->serial), "a second terminal signal");
    }
    if (rsf_serial_take_waiting(&x->serial)) {
        event_set(&x->room);
    }
    if (rsf_serial_enter(&x->serial)) {
        drain_and_leave(x);
    }
}

static void
watch_and_end(exchange *x)
{
    uint64_t seed = x->round;
    if (x->round > 0) {
        end_all(x, random_below(&seed, 60));
        return;
    }
    while (now() < deadline) {
        CHECK(rsf_serial_size(&x->serial) <= x->serial.capacity, "size beyond the capacity");
        sched_yield();
    }
    end_all(x, 0);
}

static void
exchange_thread(void *shared, int me)
{
    if (me < SIGNALLERS) {
        signal_all(shared, me);
    } else {
        watch_and_end(shared);
    }
}

static void
check_result(exchange *x)
{
    uint64_t sent = 0, received = 0;
    for (int i = 0; i < SIGNALLERS; i++) {
        CHECK(x->may_cancel || x->sent[i] == x->received[i],
              "thread %d: %" PRIu64 " accepted, %" PRIu64 " delivered", i, x->sent[i],
              x->received[i]);
        sent += x->sent[i];
        received += x->received[i];
    }
    CHECK_EQUAL(received + x->dropped, sent, "delivered and dropped, of what was accepted");
    CHECK_EQUAL(x->terminals, x->may_cancel ? 0 : 1, "terminal signals");
    CHECK_EQUAL(rsf_serial_size(&x->serial), 0, "left over");
}

static void
stress_run(bool wait)
{
    static const uint64_t capacities[] = {1, 3, MAX_CAPACITY};
    const double end = deadline;
    const double part = (end - now()) / 3;
    for (size_t i = 0; i < 3; i++) {
        static exchange x;
        exchange_init(&x, capacities[i]);
        x.wait = wait;
        deadline = now() + part;
        run_threads(SIGNALLERS + 1, exchange_thread, &x);
        check_result(&x);
    }
    deadline = end;
}

static void
stress_trying(void)
{
    stress_run(false);
}

static void
stress_waiting(void)
{
    stress_run(true);
}

/* Many short runs: the ends are where the races are. */
static void
stress_ends(void)
{
    for (uint64_t round = 1; round <= 2 || now() < deadline; round++) {
        static exchange x;
        exchange_init(&x, 3);
        x.round = round;
        x.may_cancel = round % 2 == 0;
        run_threads(SIGNALLERS + 1, exchange_thread, &x);
        check_result(&x);
    }
}

int
main(int argc, char **argv)
{
    void (*const parts[])(void) = {stress_trying, stress_waiting, stress_ends};
    const size_t n = sizeof parts / sizeof parts[0];
    double seconds = run_seconds(argc, argv);
    for (size_t i = 0; i < n; i++) {
        deadline = now() + seconds / (double)n;
        parts[i]();
    }
    return 0;
}

/*
 * model_ring.c - the ring on the simulated machine: slots in plain memory, sides that change hands,
 * parking, and a close by a third thread.
 */
#include "model.h"
#include "rsf_ring.h"

#define ELEMENTS 3
#define SLOTS 2

static rsf_ring ring;
static uint64_t slots[SLOTS];
static uint64_t put_next, got_next; /* the sides' own */
static uint64_t reason;             /* published by the close */
static model_event data, room;

static void
prepare_capacity(uint64_t capacity)
{
    rsf_ring_init(&ring, capacity);
    ring.tail = ring.cached_head = ring.head = ring.cached_tail = UINT64_MAX;
    put_next = got_next = reason = 0;
    slots[0] = slots[1] = 0;
    model_event_init(&data);
    model_event_init(&room);
}

static void
prepare_one(void)
{
    prepare_capacity(1);
}

static void
prepare_two(void)
{
    prepare_capacity(2);
}

static uint64_t
put(uint64_t n)
{
    uint64_t first;
    n = rsf_ring_reserve(&ring, n, &first);
    for (uint64_t i = 0; i < n; i++) {
        uint64_t next = model_read(&put_next);
        model_write(&slots[rsf_ring_slot(&ring, first + i)], next);
        model_write(&put_next, next + 1);
    }
    rsf_ring_commit(&ring, n);
    return n;
}

static uint64_t
take(uint64_t n)
{
    uint64_t first;
    n = rsf_ring_peek(&ring, n, &first);
    for (uint64_t i = 0; i < n; i++) {
        uint64_t next = model_read(&got_next);
        model_check(model_read(&slots[rsf_ring_slot(&ring, first + i)]) == next, "out of order");
        model_write(&got_next, next + 1);
    }
    rsf_ring_release(&ring, n);
    return n;
}

static void
all_through(void)
{
    model_check(model_read(&got_next) == model_read(&put_next), "an element is lost");
}

/* One producer, one consumer, who park. */
static void
parking(int me)
{
    for (uint64_t done = 0; done < ELEMENTS;) {
        model_event *mine = me == 0 ? &room : &data;
        uint64_t n = me == 0 ? put(1) : take(1);
        done += n;
        if (n > 0) {
            if (me == 0 && rsf_ring_take_waiting_consumer(&ring)) {
                model_event_set(&data);
            } else if (me == 1 && rsf_ring_take_waiting_producer(&ring)) {
                model_event_set(&room);
            }
            continue;
        }
        unsigned ticket = model_event_ticket(mine);
        if (me == 0 ? rsf_ring_prepare_wait_producer(&ring)
                    : rsf_ring_prepare_wait_consumer(&ring)) {
            model_event_wait(mine, ticket);
        }
    }
}

/* Two producers and two consumers take turns. */
static void
turns(int me)
{
    for (uint64_t done = 0; done < 2;) {
        if (me < 2 ? rsf_ring_enter_producer(&ring) : rsf_ring_enter_consumer(&ring)) {
            done += me < 2 ? put(1) : take(1);
            if (me < 2) {
                rsf_ring_leave_producer(&ring);
            } else {
                rsf_ring_leave_consumer(&ring);
            }
        }
        if (done < 2) {
            model_pause();
        }
    }
}

/* A third thread closes while the producer produces and the consumer waits for the end. */
static void
closing(int me)
{
    if (me == 0) {
        for (int i = 0; i < 2; i++) {
            model_check(rsf_ring_enter_producer(&ring), "somebody else is inside");
            if (!rsf_ring_is_closed(&ring)) {
                (void)put(1);
            }
            rsf_ring_leave_producer(&ring);
        }
    } else if (me == 1) {
        while (!rsf_ring_is_drained(&ring)) {
            if (take(2) == 0) {
                model_pause();
            }
        }
        model_check(model_read(&reason) == 1, "closed, and the reason is not there");
    } else {
        model_write(&reason, 1);
        rsf_ring_close(&ring);
    }
}

/* The producer closes: a consumer that sees it, and then nothing, has seen everything. */
static void
end_of_stream(int me)
{
    if (me == 0) {
        (void)put(2);
        rsf_ring_close(&ring);
        if (rsf_ring_take_waiting_consumer(&ring)) {
            model_event_set(&data);
        }
        return;
    }
    for (;;) {
        bool closed = rsf_ring_is_closed(&ring);
        if (take(2) == 0) {
            if (closed) {
                return;
            }
            unsigned ticket = model_event_ticket(&data);
            if (rsf_ring_prepare_wait_consumer(&ring)) {
                model_event_wait(&data, ticket);
            }
        }
    }
}

/* Anybody may ask for the size; here it never is more than 1. */
static void
sizes(int me)
{
    if (me == 2) {
        for (int i = 0; i < 3; i++) {
            model_check(rsf_ring_size(&ring) <= 1, "more elements than were put in");
        }
    } else if (me == 0) {
        (void)put(1);
    } else {
        while (take(1) == 0) {
            model_pause();
        }
    }
}

/* The same for a ring of one, which gets more than one: a size made of an old head and a new tail. */
static void
bound_of_sizes(int me)
{
    if (me == 2) {
        for (int i = 0; i < 3; i++) {
            model_check(rsf_ring_size(&ring) <= 1, "more elements than the capacity");
        }
        return;
    }
    for (uint64_t done = 0; done < 2;) {
        uint64_t n = me == 0 ? put(1) : take(1);
        done += n;
        if (n == 0) {
            model_pause();
        }
    }
}

int
main(int argc, char **argv)
{
    static const model_scenario scenarios[] = {
        {"parking at 1", 2, prepare_one, parking, all_through},
        {"parking at 2", 2, prepare_two, parking, all_through},
        {"turns", 4, prepare_two, turns, all_through},
        {"closing", 3, prepare_two, closing, all_through},
        {"end of stream", 2, prepare_two, end_of_stream, all_through},
        {"sizes", 3, prepare_two, sizes, all_through},
        {"bound of sizes", 3, prepare_one, bound_of_sizes, all_through},
    };
    return model_main(argc, argv, scenarios, sizeof scenarios / sizeof scenarios[0]);
}

/*
 * race.c - see race.h
 */
#include "race.h"

#if defined(_WIN32)
#include <windows.h>
#define let_others_run() ((void)SwitchToThread())
#else
#include <sched.h>
#define let_others_run() ((void)sched_yield())
#endif

#define PATIENCE UINT64_C(20000000) /* turns of waiting without progress: tens of seconds */

/* ---------------------------------------------------------------- the ring */

int64_t
rsf_race_ring_produce(rsf_ring *ring, uint64_t *storage, uint64_t n, uint64_t burst)
{
    uint64_t next = 0, in_vain = 0;
    while (next < n) {
        uint64_t first;
        uint64_t wanted = n - next < burst ? n - next : burst;
        uint64_t room = rsf_ring_reserve(ring, wanted, &first);
        for (uint64_t i = 0; i < room; i++) {
            storage[rsf_ring_slot(ring, first + i)] = next + i;
        }
        rsf_ring_commit(ring, room);
        next += room;
        if (room > 0) {
            in_vain = 0;
        } else if (++in_vain < PATIENCE) {
            let_others_run();
        } else {
            return RSF_RACE_STUCK;
        }
    }
    rsf_ring_close(ring);
    return (int64_t)n;
}

int64_t
rsf_race_ring_consume(rsf_ring *ring, const uint64_t *storage, uint64_t burst)
{
    uint64_t next = 0, in_vain = 0;
    while (!rsf_ring_is_drained(ring)) {
        uint64_t first;
        uint64_t ready = rsf_ring_peek(ring, burst, &first);
        for (uint64_t i = 0; i < ready; i++) {
            if (storage[rsf_ring_slot(ring, first + i)] != next + i) {
                return RSF_RACE_VALUE;
            }
        }
        rsf_ring_release(ring, ready);
        next += ready;
        if (ready > 0) {
            in_vain = 0;
        } else if (++in_vain < PATIENCE) {
            let_others_run();
        } else {
            return RSF_RACE_STUCK;
        }
    }
    return (int64_t)next;
}

int64_t
rsf_race_ring_guard(rsf_ring *ring, uint64_t *plain, uint64_t n)
{
    uint64_t in_vain = 0;
    for (uint64_t i = 0; i < n;) {
        if (rsf_ring_enter_producer(ring)) {
            (*plain)++;
            rsf_ring_leave_producer(ring);
            in_vain = 0;
            i++;
        } else if (++in_vain < PATIENCE) {
            let_others_run();
        } else {
            return RSF_RACE_STUCK;
        }
    }
    return (int64_t)n;
}

/* ---------------------------------------------------------------- the demand counter */

int64_t
rsf_race_demand_request(rsf_demand *demand, int64_t n, int64_t times)
{
    int64_t sum = 0;
    for (int64_t i = 0; i < times && rsf_demand_request(demand, n) >= 0; i++) {
        sum += n;
    }
    return sum;
}

int64_t
rsf_race_demand_fulfil(rsf_demand *demand, int64_t total)
{
    uint64_t in_vain = 0;
    int64_t done = 0;
    while (done < total) {
        int64_t left = rsf_demand_fulfil(demand, 1);
        if (left >= 0) {
            done++;
            in_vain = 0;
        } else if (left != RSF_EXCEEDED) {
            break; /* cancelled or terminated */
        } else if (++in_vain < PATIENCE) {
            let_others_run();
        } else {
            return RSF_RACE_STUCK;
        }
    }
    return done;
}

/* ---------------------------------------------------------------- the serializer */

static void
violated(rsf_race_subscriber *subscriber, int64_t what)
{
    if (subscriber->violation == 0) {
        subscriber->violation = what;
    }
}

static void
receive(rsf_race_subscriber *subscriber, uint64_t element)
{
    uint64_t thread = element % RSF_RACE_THREADS;
    if (subscriber->delivering++ != 0) {
        violated(subscriber, RSF_RACE_OVERLAP);
    }
    if (subscriber->terminals != 0) {
        violated(subscriber, RSF_RACE_AFTER_END);
    }
    if (subscriber->received[thread]++ != element / RSF_RACE_THREADS) {
        violated(subscriber, RSF_RACE_VALUE);
    }
    subscriber->delivering--;
}

static void
drain_and_leave(rsf_race_subscriber *subscriber)
{
    rsf_serial *serial = &subscriber->serial;
    do {
        uint64_t index;
        while (rsf_serial_peek(serial, &index)) {
            uint64_t element = subscriber->slots[rsf_serial_slot(serial, index)];
            rsf_serial_release(serial);
            receive(subscriber, element);
        }
        if (subscriber->terminals == 0 && rsf_serial_is_drained(serial)) {
            subscriber->terminals = 1;
        }
    } while (!rsf_serial_leave(serial));
}

int64_t
rsf_race_serial_signal(rsf_race_subscriber *subscriber, uint64_t thread, uint64_t n)
{
    rsf_serial *serial = &subscriber->serial;
    uint64_t in_vain = 0;
    for (uint64_t i = 0; i < n;) {
        uint64_t index;
        int answer = rsf_serial_reserve(serial, &index);
        if (answer == RSF_SERIAL_OK) {
            subscriber->slots[rsf_serial_slot(serial, index)] = i * RSF_RACE_THREADS + thread;
            rsf_serial_publish(serial, index);
            if (rsf_serial_enter(serial)) {
                drain_and_leave(subscriber);
            }
            in_vain = 0;
            i++;
        } else if (answer == RSF_SERIAL_TERMINATED) {
            return (int64_t)i;
        } else if (answer != RSF_SERIAL_FULL) {
            return RSF_RACE_UNEXPECTED;
        } else if (++in_vain < PATIENCE) {
            let_others_run();
        } else {
            return RSF_RACE_STUCK;
        }
    }
    return (int64_t)n;
}

int64_t
rsf_race_serial_terminate(rsf_race_subscriber *subscriber, int kind)
{
    rsf_serial *serial = &subscriber->serial;
    bool first = rsf_serial_latch_terminal(serial);
    if (first) {
        rsf_serial_publish_terminal(serial, kind);
    }
    if (rsf_serial_enter(serial)) {
        drain_and_leave(subscriber);
    }
    return first ? 1 : 0;
}

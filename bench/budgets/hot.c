/*
 * hot.c - the C core's hot paths, each in a function of its own, for a count of instructions.
 *
 *     valgrind --tool=callgrind --callgrind-out-file=F ./hot N
 *
 * writes one dump per function (F.1, F.2, ..), named in its trigger line. One thread: how often
 * threads meet is a matter of luck, and a budget must not be. Every function checks its result.
 */
#include <stdio.h>
#include <stdlib.h>
#include <valgrind/callgrind.h>

#include "rsf_demand.h"
#include "rsf_records.h"
#include "rsf_ring.h"
#include "rsf_serial.h"

#define CAPACITY 1024
#define BURST 256
#define RECORDS 48 /* no divisor of CAPACITY: now and then a copy goes round the end */

static uint64_t storage[CAPACITY];
static rsf_serial_cell cells[CAPACITY];

/* In place of the C library's, whose version must not change the count: the last word only, since
 * the copy is its business and the way there is ours. */
void *
memmove(void *to, const void *from, size_t size)
{
    uint64_t *target = to;
    const uint64_t *source = from;
    size_t last = size / sizeof *target - 1;
    target[last] = source[last];
    __asm__ volatile("" ::: "memory"); /* not to be recognised as a memmove */
    return to;
}

static uint64_t
bare_add(uint64_t n)
{
    static uint64_t sum;
    for (uint64_t i = 0; i < n; i++) {
        (void)rsf_fetch_add_acq_rel_u64(&sum, 1);
    }
    return sum;
}

static uint64_t
demand_request(uint64_t n)
{
    static rsf_demand demand;
    rsf_demand_init(&demand, 0);
    for (uint64_t i = 0; i < n; i++) {
        (void)rsf_demand_request(&demand, 1);
    }
    return (uint64_t)rsf_demand_load(&demand);
}

static uint64_t
demand_fulfil(uint64_t n)
{
    static rsf_demand demand;
    rsf_demand_init(&demand, (int64_t)(2 * n));
    for (uint64_t i = 0; i < n; i++) {
        (void)rsf_demand_fulfil(&demand, 1);
    }
    return (uint64_t)rsf_demand_load(&demand);
}

/* An element in and out. */
static uint64_t
ring_one(uint64_t n)
{
    static rsf_ring ring;
    uint64_t first, sum = 0;
    (void)rsf_ring_init(&ring, CAPACITY);
    for (uint64_t i = 0; i < n; i++) {
        if (rsf_ring_reserve(&ring, 1, &first) != 0) {
            storage[rsf_ring_slot(&ring, first)] = 1;
            rsf_ring_commit(&ring, 1);
        }
        if (rsf_ring_peek(&ring, 1, &first) != 0) {
            sum += storage[rsf_ring_slot(&ring, first)];
            rsf_ring_release(&ring, 1);
        }
    }
    return sum;
}

/* The same as a backend does it: guarded against misuse, watching for the close, waking. */
static uint64_t
ring_guarded(uint64_t n)
{
    static rsf_ring ring;
    uint64_t first, sum = 0;
    (void)rsf_ring_init(&ring, CAPACITY);
    for (uint64_t i = 0; i < n; i++) {
        if (!rsf_ring_enter_producer(&ring) || rsf_ring_is_closed(&ring)) {
            return 0;
        }
        if (rsf_ring_reserve(&ring, 1, &first) != 0) {
            storage[rsf_ring_slot(&ring, first)] = 1;
            rsf_ring_commit(&ring, 1);
        }
        rsf_ring_leave_producer(&ring);
        sum += rsf_ring_take_waiting_consumer(&ring);
        if (!rsf_ring_enter_consumer(&ring)) {
            return 0;
        }
        if (rsf_ring_peek(&ring, 1, &first) != 0) {
            sum += storage[rsf_ring_slot(&ring, first)];
            rsf_ring_release(&ring, 1);
        }
        rsf_ring_leave_consumer(&ring);
        sum += rsf_ring_take_waiting_producer(&ring);
    }
    return sum;
}

/* A burst in and out, without touching the slots. */
static uint64_t
ring_burst(uint64_t n)
{
    static rsf_ring ring;
    uint64_t first, sum = 0;
    (void)rsf_ring_init(&ring, CAPACITY);
    for (uint64_t i = 0; i < n; i++) {
        rsf_ring_commit(&ring, rsf_ring_reserve(&ring, BURST, &first));
        uint64_t ready = rsf_ring_peek(&ring, BURST, &first);
        rsf_ring_release(&ring, ready);
        sum += ready / BURST;
    }
    return sum;
}

/* Past the mailbox: nobody else signals. */
static uint64_t
serial_direct(uint64_t n)
{
    static rsf_serial serial;
    uint64_t index, sum = 0;
    (void)rsf_serial_init(&serial, cells, CAPACITY);
    for (uint64_t i = 0; i < n; i++) {
        if (!rsf_serial_try_acquire(&serial)) {
            return 0;
        }
        if (!rsf_serial_peek(&serial, &index) && !rsf_serial_is_cancelled(&serial) &&
            rsf_serial_is_idle(&serial)) {
            sum++;
        }
        if (!rsf_serial_leave(&serial)) {
            return 0;
        }
    }
    return sum;
}

/* Through the mailbox, one element at a time. */
static uint64_t
serial_mailbox(uint64_t n)
{
    static rsf_serial serial;
    uint64_t index, sum = 0;
    (void)rsf_serial_init(&serial, cells, CAPACITY);
    for (uint64_t i = 0; i < n; i++) {
        if (rsf_serial_reserve(&serial, &index) != RSF_SERIAL_OK) {
            return 0;
        }
        storage[rsf_serial_slot(&serial, index)] = 1;
        rsf_serial_publish(&serial, index);
        if (!rsf_serial_enter(&serial)) {
            return 0;
        }
        while (rsf_serial_peek(&serial, &index)) {
            sum += storage[rsf_serial_slot(&serial, index)];
            rsf_serial_release(&serial);
        }
        if (rsf_serial_is_drained(&serial) || !rsf_serial_leave(&serial)) {
            return 0;
        }
    }
    return sum;
}

/* A copy in and out. */
static uint64_t
records(uint64_t n)
{
    static rsf_ring ring;
    static uint64_t source[RECORDS], target[RECORDS];
    uint64_t first, sum = 0;
    (void)rsf_ring_init(&ring, CAPACITY);
    for (uint64_t i = 0; i < n; i++) {
        source[RECORDS - 1] = i;
        uint64_t count = rsf_ring_reserve(&ring, RECORDS, &first);
        rsf_records_put(&ring, storage, sizeof source[0], first, count, source);
        rsf_ring_commit(&ring, count);
        count = rsf_ring_peek(&ring, RECORDS, &first);
        rsf_records_take(&ring, storage, sizeof target[0], first, count, target);
        rsf_ring_release(&ring, count);
        sum += target[RECORDS - 1] == i;
    }
    return sum;
}

static const struct {
    const char *name;
    uint64_t (*volatile run)(uint64_t n); /* volatile: called, and not inlined into main */
} paths[] = {
    {"bare_add", bare_add},
    {"demand_request", demand_request},
    {"demand_fulfil", demand_fulfil},
    {"ring_one", ring_one},
    {"ring_guarded", ring_guarded},
    {"ring_burst", ring_burst},
    {"serial_direct", serial_direct},
    {"serial_mailbox", serial_mailbox},
    {"records", records},
};

int
main(int argc, char **argv)
{
    uint64_t n = argc > 1 ? strtoull(argv[1], NULL, 10) : 1000;
    for (size_t i = 0; i < sizeof paths / sizeof paths[0]; i++) {
        uint64_t (*run)(uint64_t) = paths[i].run;
        CALLGRIND_ZERO_STATS;
        uint64_t done = run(n);
        CALLGRIND_DUMP_STATS_AT(paths[i].name);
        if (done != n) {
            fprintf(stderr, "%s: %llu instead of %llu\n", paths[i].name, (unsigned long long)done,
                    (unsigned long long)n);
            return 1;
        }
    }
    return 0;
}

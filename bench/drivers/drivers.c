/*
 * drivers.c - the C core by itself, and the floors under it, on threads that no interpreter knows.
 *
 * Loaded by ctypes, which releases the GIL meanwhile. Each function does n operations in all,
 * starting its threads included, and answers what the caller then compares with the right result.
 */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "checking.h"
#include "rsf_demand.h"
#include "rsf_ring.h"
#include "rsf_serial.h"
#include "waiting.h"

#define CAPACITY 1024
#define MAX_THREADS 8
#define MAX_BURST 256
#define WRONG UINT64_MAX /* out of order, doubled or lost */

typedef struct job {
    void (*body)(void *shared, uint64_t me, uint64_t n);
    void *shared;
    uint64_t me, n;
} job;

static void *
run_job(void *argument)
{
    job *given = argument;
    given->body(given->shared, given->me, given->n);
    return NULL;
}

/* body(shared, 0, n / threads) .. in so many threads; with one thread, on the caller's. */
static void
run_threads(uint64_t threads, void (*body)(void *, uint64_t, uint64_t), void *shared, uint64_t n)
{
    pthread_t handles[MAX_THREADS];
    job jobs[MAX_THREADS];
    if (threads == 1) {
        body(shared, 0, n);
        return;
    }
    for (uint64_t i = 0; i < threads; i++) {
        jobs[i] = (job){body, shared, i, n / threads};
        if (pthread_create(&handles[i], NULL, run_job, &jobs[i]) != 0) {
            abort();
        }
    }
    for (uint64_t i = 0; i < threads; i++) {
        pthread_join(handles[i], NULL);
    }
}

/* ------------------------------------------------------------------ demand: answers the sum */

static void
request_demand(void *shared, uint64_t me, uint64_t n)
{
    (void)me;
    for (uint64_t i = 0; i < n; i++) {
        (void)rsf_demand_request(shared, 1);
    }
}

static void
request_by_cas(void *shared, uint64_t me, uint64_t n)
{
    (void)me;
    for (uint64_t i = 0; i < n; i++) {
        uint64_t before = rsf_load_rlx_u64(shared);
        while (!rsf_cas_acq_rel_u64(shared, &before, before + 1)) {
        }
    }
}

static void
request_by_add(void *shared, uint64_t me, uint64_t n)
{
    (void)me;
    for (uint64_t i = 0; i < n; i++) {
        (void)rsf_fetch_add_acq_rel_u64(shared, 1);
    }
}

uint64_t
demand(uint64_t n, uint64_t threads)
{
    rsf_demand counter;
    rsf_demand_init(&counter, 0);
    run_threads(threads, request_demand, &counter, n);
    return (uint64_t)rsf_demand_load(&counter);
}

uint64_t
demand_by_cas(uint64_t n, uint64_t threads)
{
    uint64_t counter = 0;
    run_threads(threads, request_by_cas, &counter, n);
    return rsf_load_acq_u64(&counter);
}

uint64_t
demand_by_add(uint64_t n, uint64_t threads)
{
    uint64_t counter = 0;
    run_threads(threads, request_by_add, &counter, n);
    return rsf_load_acq_u64(&counter);
}

/* ---------------------------------------------- ring: 0, 1, 2 .. n-1, answers n or WRONG */

#define AHEAD 128 /* reserved at a time, and fetched so far ahead of being written */
#define LINE 8    /* elements on one line of most processors */

/* Storage that begins with a line: no burst of whole lines shares one with the next. */
#define STORAGE _Alignas(RSF_CACHE_LINE) uint64_t storage[CAPACITY]

typedef struct transfer {
    rsf_ring ring;
    STORAGE;
    uint64_t burst;
    uint64_t wrong; /* the consumer's; 0 if every element was the one that was due */
} transfer;

static void *
aligned_zeros(size_t size)
{
    void *memory = aligned_alloc(RSF_CACHE_LINE, size); /* of which the size is a multiple */
    if (memory == NULL) {
        abort();
    }
    return memset(memory, 0, size);
}

static inline uint64_t
least(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

/* A call in and a call out for every element. */
static void
ring_side_by_calls(void *shared, uint64_t me, uint64_t half)
{
    transfer *t = shared;
    uint64_t n = 2 * half, done = 0, wrong = 0, first;
    unsigned idle = 0;
    while (done < n) {
        if (me == 0) {
            if (rsf_ring_reserve(&t->ring, 1, &first) == 0) {
                wait_a_little(&idle);
                continue;
            }
            t->storage[rsf_ring_slot(&t->ring, first)] = done;
            rsf_ring_commit(&t->ring, 1);
        } else {
            if (rsf_ring_peek(&t->ring, 1, &first) == 0) {
                wait_a_little(&idle);
                continue;
            }
            uint64_t element = t->storage[rsf_ring_slot(&t->ring, first)];
            rsf_ring_release(&t->ring, 1);
            wrong |= element ^ done;
        }
        idle = 0;
        done++;
    }
    if (me != 0) {
        t->wrong = wrong;
    }
}

/* The same guarantees: an element can be taken as soon as it is written, and its place be used as
 * soon as it was taken. What is free, or there, is asked for by many. The consumer keeps off the
 * line that the producer is writing to, unless there is nothing else. */
static void
ring_side_by_one(void *shared, uint64_t me, uint64_t half)
{
    transfer *t = shared;
    uint64_t n = 2 * half, done = 0, wrong = 0, first;
    unsigned idle = 0;
    while (done < n) {
        uint64_t wanted = least(n - done, AHEAD);
        uint64_t count = me == 0 ? rsf_ring_reserve(&t->ring, wanted, &first)
                                 : rsf_ring_peek(&t->ring, wanted, &first);
        if (count == 0) {
            wait_a_little(&idle);
            continue;
        }
        idle = 0;
        if (me == 0) {
            for (uint64_t i = 0; i < count; i += LINE) {
                uint64_t later = rsf_ring_slot(&t->ring, first + AHEAD + i);
                rsf_prefetch_write(&t->storage[later], sizeof t->storage[later]);
            }
            for (uint64_t i = 0; i < count; i++) {
                t->storage[rsf_ring_slot(&t->ring, first + i)] = done + i;
                rsf_ring_commit_to(&t->ring, first + i + 1);
            }
        } else {
            if (count > LINE) {
                count -= (first + count) % LINE;
            }
            for (uint64_t i = 0; i < count; i++) {
                wrong |= t->storage[rsf_ring_slot(&t->ring, first + i)] ^ (done + i);
                rsf_ring_release_to(&t->ring, first + i + 1);
            }
        }
        done += count;
    }
    if (me != 0) {
        t->wrong = wrong;
    }
}

static inline void
ring_side_by_bursts(void *shared, uint64_t me, uint64_t half, bool fetch)
{
    transfer *t = shared;
    uint64_t n = 2 * half, burst = t->burst, done = 0, wrong = 0, first;
    unsigned idle = 0;
    while (done < n) {
        uint64_t wanted = least(n - done, burst);
        uint64_t count = me == 0 ? rsf_ring_reserve(&t->ring, wanted, &first)
                                 : rsf_ring_peek(&t->ring, wanted, &first);
        if (count == 0) {
            wait_a_little(&idle);
            continue;
        }
        idle = 0;
        count = rsf_ring_contiguous(&t->ring, first, count);
        uint64_t *slots = t->storage + rsf_ring_slot(&t->ring, first);
        if (me == 0) {
            if (fetch) {
                rsf_prefetch_write(slots, count * sizeof *slots);
            }
            for (uint64_t i = 0; i < count; i++) {
                slots[i] = done + i;
            }
            rsf_ring_commit_to(&t->ring, first + count);
        } else {
            if (fetch) {
                rsf_prefetch_read(slots, count * sizeof *slots);
            }
            wrong |= differences(slots, done, count);
            rsf_ring_release_to(&t->ring, first + count);
        }
        done += count;
    }
    if (me != 0) {
        t->wrong = wrong;
    }
}

static void
ring_side_fetching(void *shared, uint64_t me, uint64_t half)
{
    ring_side_by_bursts(shared, me, half, true);
}

static void
ring_side_not_fetching(void *shared, uint64_t me, uint64_t half)
{
    ring_side_by_bursts(shared, me, half, false);
}

static uint64_t
transfer_by(uint64_t n, uint64_t burst, void (*side)(void *, uint64_t, uint64_t))
{
    transfer *t = aligned_zeros(sizeof *t);
    if (burst > MAX_BURST || !rsf_ring_init(&t->ring, CAPACITY)) {
        abort();
    }
    t->burst = burst;
    run_threads(2, side, t, n);
    uint64_t answer = t->wrong == 0 ? n : WRONG;
    free(t);
    return answer;
}

uint64_t
ring(uint64_t n, uint64_t burst)
{
    return transfer_by(n, burst, burst == 1 ? ring_side_by_one : ring_side_fetching);
}

/* The ring without what the rest of its interface is for. */
uint64_t
ring_simply(uint64_t n, uint64_t burst)
{
    return transfer_by(n, burst, burst == 1 ? ring_side_by_calls : ring_side_not_fetching);
}

/* A floor: no more is shared than the lines of the elements. There is no index: what is not 0 is
 * an element, and stands for its burst. So there is no size, no close, and no 0. */
typedef struct slots {
    STORAGE;
    uint64_t burst;
    uint64_t wrong;
} slots;

static void
slots_side(void *shared, uint64_t me, uint64_t half)
{
    slots *s = shared;
    uint64_t n = 2 * half, burst = s->burst, done = 0, wrong = 0;
    unsigned idle = 0;
    while (done < n) {
        uint64_t *slot = &s->storage[done % CAPACITY];
        uint64_t element = rsf_load_acq_u64(slot);
        if ((element == 0) != (me == 0)) {
            wait_a_little(&idle);
            continue;
        }
        idle = 0;
        uint64_t count = least(n - done, burst);
        if (me == 0) {
            if (count > 1) {
                rsf_prefetch_write(slot, count * sizeof *slot);
            }
            for (uint64_t i = 1; i < count; i++) {
                slot[i] = done + i;
            }
            rsf_store_rel_u64(slot, done + 1);
        } else {
            if (count > 1) {
                rsf_prefetch_read(slot, count * sizeof *slot);
            }
            wrong |= element ^ (done + 1);
            wrong |= differences(slot + 1, done + 1, count - 1);
            rsf_store_rel_u64(slot, 0);
        }
        done += count;
    }
    if (me != 0) {
        s->wrong = wrong;
    }
}

/* Pre: CAPACITY is a multiple of the burst. */
uint64_t
ring_slots(uint64_t n, uint64_t burst)
{
    slots *s = aligned_zeros(sizeof *s);
    if (CAPACITY % burst != 0) {
        abort();
    }
    s->burst = burst;
    run_threads(2, slots_side, s, n);
    uint64_t answer = s->wrong == 0 ? n : WRONG;
    free(s);
    return answer;
}

/* The least that a ring of indices is. Two of them on lines of their own, the other side's read
 * every time. */
typedef struct plain_ring {
    uint64_t tail;
    uint8_t pad[RSF_CACHE_LINE];
    uint64_t head;
    uint8_t pad_too[RSF_CACHE_LINE];
    STORAGE;
    uint64_t burst;
    uint64_t wrong;
    int consistent; /* sequentially, by exchanges */
} plain_ring;

static void
plain_side(void *shared, uint64_t me, uint64_t half)
{
    plain_ring *r = shared;
    uint64_t n = 2 * half, burst = r->burst, done = 0, wrong = 0;
    unsigned idle = 0;
    while (done < n) {
        uint64_t there = me == 0 ? CAPACITY - (done - rsf_load_acq_u64(&r->head))
                                 : rsf_load_acq_u64(&r->tail) - done;
        if (there == 0) {
            wait_a_little(&idle);
            continue;
        }
        idle = 0;
        uint64_t count = least(there, least(n - done, burst));
        count = least(count, CAPACITY - done % CAPACITY);
        uint64_t *slots = r->storage + done % CAPACITY;
        if (me == 0) {
            for (uint64_t i = 0; i < count; i++) {
                slots[i] = done + i;
            }
        } else {
            wrong |= differences(slots, done, count);
        }
        done += count;
        uint64_t *mine = me == 0 ? &r->tail : &r->head;
        if (r->consistent) {
            rsf_store_sc_u64(mine, done);
        } else {
            rsf_store_rel_u64(mine, done);
        }
    }
    if (me != 0) {
        r->wrong = wrong;
    }
}

static uint64_t
transfer_plain(uint64_t n, uint64_t burst, int consistent)
{
    plain_ring *r = aligned_zeros(sizeof *r);
    r->burst = burst;
    r->consistent = consistent;
    run_threads(2, plain_side, r, n);
    uint64_t answer = r->wrong == 0 ? n : WRONG;
    free(r);
    return answer;
}

uint64_t
ring_plain(uint64_t n, uint64_t burst)
{
    return transfer_plain(n, burst, 0);
}

uint64_t
ring_plain_sc(uint64_t n, uint64_t burst)
{
    return transfer_plain(n, burst, 1);
}

/* ------------------------- serializer: answers how many were delivered, or WRONG */

typedef struct element {
    uint64_t thread, ordinal;
} element;

typedef struct subscriber {
    rsf_serial serial;
    rsf_serial_cell cells[CAPACITY];
    element slots[CAPACITY];
    pthread_mutex_t lock;
    uint64_t next[MAX_THREADS]; /* each thread's order is kept */
    uint64_t delivered;
    int wrong;
} subscriber;

/* Not inlined: a subscriber is somebody else's code. */
__attribute__((noinline)) static void
on_next(subscriber *s, element given)
{
    if (s->next[given.thread]++ != given.ordinal) {
        s->wrong = 1;
    }
    s->delivered++;
}

static void
deliver_queued(subscriber *s)
{
    uint64_t index;
    while (rsf_serial_peek(&s->serial, &index)) {
        element given = s->slots[rsf_serial_slot(&s->serial, index)];
        rsf_serial_release(&s->serial);
        on_next(s, given);
    }
}

static void
signal_serialized(void *shared, uint64_t me, uint64_t n)
{
    subscriber *s = shared;
    for (uint64_t i = 0; i < n; i++) {
        element given = {me, i};
        uint64_t index;
        unsigned idle = 0;
        if (rsf_serial_try_acquire(&s->serial)) {
            deliver_queued(s);
            if (rsf_serial_is_idle(&s->serial)) {
                on_next(s, given);
                given.thread = WRONG;
            }
        } else {
            while (rsf_serial_reserve(&s->serial, &index) != RSF_SERIAL_OK) {
                wait_a_little(&idle);
            }
            s->slots[rsf_serial_slot(&s->serial, index)] = given;
            rsf_serial_publish(&s->serial, index);
            if (!rsf_serial_enter(&s->serial)) {
                continue;
            }
            given.thread = WRONG;
        }
        for (;;) { /* holding the drain, with or without an element of one's own left */
            deliver_queued(s);
            if (given.thread != WRONG && rsf_serial_is_idle(&s->serial)) {
                on_next(s, given);
                given.thread = WRONG;
            } else if (given.thread != WRONG && rsf_serial_reserve(&s->serial, &index) == 0) {
                s->slots[rsf_serial_slot(&s->serial, index)] = given;
                rsf_serial_publish(&s->serial, index);
                given.thread = WRONG;
                continue;
            }
            if (given.thread == WRONG && rsf_serial_leave(&s->serial)) {
                break;
            }
        }
    }
}

/* Without the way past the mailbox. */
static void
signal_queued(void *shared, uint64_t me, uint64_t n)
{
    subscriber *s = shared;
    for (uint64_t i = 0; i < n; i++) {
        uint64_t index;
        unsigned idle = 0;
        while (rsf_serial_reserve(&s->serial, &index) != RSF_SERIAL_OK) {
            wait_a_little(&idle);
        }
        s->slots[rsf_serial_slot(&s->serial, index)] = (element){me, i};
        rsf_serial_publish(&s->serial, index);
        if (rsf_serial_enter(&s->serial)) {
            do {
                deliver_queued(s);
            } while (!rsf_serial_leave(&s->serial));
        }
    }
}

static void
signal_locked(void *shared, uint64_t me, uint64_t n)
{
    subscriber *s = shared;
    for (uint64_t i = 0; i < n; i++) {
        pthread_mutex_lock(&s->lock);
        on_next(s, (element){me, i});
        pthread_mutex_unlock(&s->lock);
    }
}

static void
signal_bare(void *shared, uint64_t me, uint64_t n)
{
    for (uint64_t i = 0; i < n; i++) {
        on_next(shared, (element){me, i});
    }
}

static uint64_t
serialize(void (*body)(void *, uint64_t, uint64_t), uint64_t n, uint64_t threads)
{
    subscriber *s = calloc(1, sizeof *s);
    if (s == NULL || !rsf_serial_init(&s->serial, s->cells, CAPACITY)) {
        abort();
    }
    pthread_mutex_init(&s->lock, NULL);
    run_threads(threads, body, s, n);
    uint64_t answer = s->wrong ? WRONG : s->delivered;
    pthread_mutex_destroy(&s->lock);
    free(s);
    return answer;
}

uint64_t
serial(uint64_t n, uint64_t threads)
{
    return serialize(signal_serialized, n, threads);
}

uint64_t
serial_by_mailbox(uint64_t n, uint64_t threads)
{
    return serialize(signal_queued, n, threads);
}

uint64_t
serial_by_lock(uint64_t n, uint64_t threads)
{
    return serialize(signal_locked, n, threads);
}

/* One thread only. */
uint64_t
serial_bare(uint64_t n, uint64_t threads)
{
    return serialize(signal_bare, n, threads);
}

/*
 * rsf_ring.h - bounded single-producer single-consumer ring of slot indices.
 *
 * The ring holds no elements. It hands out indices of slots in storage that its owner provides:
 * pointers, records or bytes, the ring does not care. So one ring serves them all.
 *
 *     producer                                    consumer
 *       n = rsf_ring_reserve(r, max, &first)        n = rsf_ring_peek(r, max, &first)
 *       write slots first .. first+n-1              read slots first .. first+n-1
 *       rsf_ring_commit(r, n)                       rsf_ring_release(r, n)
 *
 * What was reserved may be committed by parts, each visible at once, and what was peeked released by
 * parts (commit_to, release_to): one by one with a look at the other side for each hundred or so.
 * The lines of slots come from the other side's cache: a producer that fetches them ahead for
 * writing (rsf_prefetch_write) hides most of what a hand-over costs. It may fetch any slots, also
 * those that are not free yet, for fetching changes nothing. A consumer fetches what it peeked
 * (rsf_prefetch_read) if that is a burst; with a few it would only disturb the producer there.
 *
 * Indices run freely through all 64 bits and wrap round; `tail - head` is the number of elements
 * whether they have wrapped or not. rsf_ring_slot() masks an index into storage, whose size is the
 * power of two that rsf_ring_slots() says. The bound is exactly `capacity` all the same.
 *
 * One producer and one consumer at a time. They may be different threads at different times if
 * something orders the hand-over; the overlap guards (enter/leave) both detect two at once and
 * order one after the other.
 *
 * Every release below has a label R and pairs with the acquire of the same number A:
 *
 *     R1 commit: tail        A1 peek: tail            the consumer sees what was put in the slots
 *     R2 release: head       A2 reserve: head         slots are reused only after they were read
 *     R3 leave_producer      A3 enter_producer        the next producer sees the last one's fields
 *     R4 leave_consumer      A4 enter_consumer        likewise for consumers
 *     R5 close: closed       A5 is_closed             a thread that sees it sees what was before
 *     R6 take_waiting_consumer and A6 prepare_wait_consumer: no wake is lost (see there)
 *     R7 take_waiting_producer and A7 prepare_wait_producer: the same, mirrored
 *     S8 enter_producer, is_closed, close, is_drained: one total order (see rsf_ring_is_drained)
 */
#ifndef RSF_RING_H
#define RSF_RING_H

#include "rsf_atomic.h"

#define RSF_RING_MAX_CAPACITY (UINT64_C(1) << 31)

typedef struct rsf_ring {
    /* Cold: written by init and close, read by all. */
    uint64_t capacity;
    uint64_t mask;
    uint32_t closed;
    uint8_t pad_cold[RSF_CACHE_LINE];

    /* The producer's, which others read. */
    uint64_t tail;
    uint32_t producer_inside;
    /* Here and not on the consumer's line: the producer takes it after every burst, while the
     * consumer sets it only when it has nothing better to do than to park. */
    uint32_t consumer_waiting;
    uint8_t pad_producer[RSF_CACHE_LINE];

    /* The consumer's, mirrored. */
    uint64_t head;
    uint32_t consumer_inside;
    uint32_t producer_waiting;
    uint8_t pad_consumer[RSF_CACHE_LINE];

    /* Each side's alone. Beside `tail` and `head` the other side's looks at these would take them
     * away from their owner, too. */
    uint64_t cached_head; /* a head seen earlier; the true one is the same or further on */
    uint8_t pad_cached_head[RSF_CACHE_LINE];
    uint64_t cached_tail; /* a tail seen earlier; the true one is the same or further on */
    uint8_t pad_cached_tail[RSF_CACHE_LINE];
} rsf_ring;

RSF_STATIC_ASSERT(offsetof(rsf_ring, tail) - offsetof(rsf_ring, closed) >= RSF_CACHE_LINE,
                  "cold fields and the producer's are a cache line apart");
RSF_STATIC_ASSERT(offsetof(rsf_ring, head) - offsetof(rsf_ring, consumer_waiting) >= RSF_CACHE_LINE,
                  "the producer's fields and the consumer's are a cache line apart");
RSF_STATIC_ASSERT(offsetof(rsf_ring, cached_head) - offsetof(rsf_ring, producer_waiting) >=
                      RSF_CACHE_LINE,
                  "the consumer's fields and the producer's own are a cache line apart");
RSF_STATIC_ASSERT(offsetof(rsf_ring, cached_tail) - offsetof(rsf_ring, cached_head) >=
                      RSF_CACHE_LINE,
                  "the producer's own and the consumer's own are a cache line apart");
RSF_STATIC_ASSERT(sizeof(rsf_ring) - offsetof(rsf_ring, cached_tail) >= RSF_CACHE_LINE,
                  "the consumer's own and what follows the ring are a cache line apart");

/*
 * Before any other thread knows the ring. Returns false, and leaves the ring alone, unless
 * 1 <= capacity <= RSF_RING_MAX_CAPACITY.
 */
static inline bool
rsf_ring_init(rsf_ring *ring, uint64_t capacity)
{
    if (capacity < 1 || capacity > RSF_RING_MAX_CAPACITY) {
        return false;
    }
    /* Field by field: a whole-struct assignment is a memset, which model checkers do not follow. */
    ring->capacity = capacity;
    ring->mask = rsf__power_of_two_at_least(capacity) - 1;
    ring->closed = 0;
    ring->tail = ring->cached_head = 0;
    ring->producer_inside = ring->consumer_waiting = 0;
    ring->head = ring->cached_tail = 0;
    ring->consumer_inside = ring->producer_waiting = 0;
    return true;
}

/* The number of slots that the owner must provide: capacity, rounded up to a power of two. */
static inline uint64_t
rsf_ring_slots(const rsf_ring *ring)
{
    return ring->mask + 1;
}

/* Where in storage a free-running index lives: 0 .. slots-1. */
static inline uint64_t
rsf_ring_slot(const rsf_ring *ring, uint64_t index)
{
    return index & ring->mask;
}

/* How many of the n slots from `first` on lie in one piece of storage before it wraps round. */
static inline uint64_t
rsf_ring_contiguous(const rsf_ring *ring, uint64_t first, uint64_t n)
{
    uint64_t to_end = rsf_ring_slots(ring) - rsf_ring_slot(ring, first);
    return n < to_end ? n : to_end;
}

/* ------------------------------------------------------------------ moving elements */

/*
 * Producer only; wait-free. Returns how many slots, at most max, are free to be written, starting
 * at index *first. 0: full. Reserving changes nothing: it may be repeated, or forgotten.
 */
static inline uint64_t
rsf_ring_reserve(rsf_ring *ring, uint64_t max, uint64_t *first)
{
    /* Relaxed: only the producer writes tail, and this is the producer. */
    uint64_t tail = rsf_load_rlx_u64(&ring->tail);
    uint64_t free = ring->capacity - (tail - ring->cached_head);
    if (free < max) {
        ring->cached_head = rsf_load_acq_u64(&ring->head); /* A2 */
        free = ring->capacity - (tail - ring->cached_head);
    }
    *first = tail;
    return free < max ? free : max;
}

/*
 * Producer only; wait-free. Publishes the reserved slots before index `end`; those after it stay
 * reserved. Pre: between what is published and what reserve said.
 */
static inline void
rsf_ring_commit_to(rsf_ring *ring, uint64_t end)
{
    rsf_store_rel_u64(&ring->tail, end); /* R1 */
}

/* Producer only; wait-free. Publishes the first n reserved slots. Pre: n <= what reserve said. */
static inline void
rsf_ring_commit(rsf_ring *ring, uint64_t n)
{
    /* Relaxed: only the producer writes tail, and this is the producer. */
    rsf_ring_commit_to(ring, rsf_load_rlx_u64(&ring->tail) + n);
}

/*
 * Consumer only; wait-free. Returns how many slots, at most max, hold elements, starting at index
 * *first. 0: empty. Peeking changes nothing: it may be repeated, or forgotten.
 */
static inline uint64_t
rsf_ring_peek(rsf_ring *ring, uint64_t max, uint64_t *first)
{
    /* Relaxed: only the consumer writes head, and this is the consumer. */
    uint64_t head = rsf_load_rlx_u64(&ring->head);
    uint64_t ready = ring->cached_tail - head;
    if (ready < max) {
        ring->cached_tail = rsf_load_acq_u64(&ring->tail); /* A1 */
        ready = ring->cached_tail - head;
    }
    *first = head;
    return ready < max ? ready : max;
}

/*
 * Consumer only; wait-free. Gives back the peeked slots before index `end`; those after it stay
 * peeked. Pre: between what is given back and what peek said.
 */
static inline void
rsf_ring_release_to(rsf_ring *ring, uint64_t end)
{
    rsf_store_rel_u64(&ring->head, end); /* R2 */
}

/* Consumer only; wait-free. Gives back the first n peeked slots. Pre: n <= what peek said. */
static inline void
rsf_ring_release(rsf_ring *ring, uint64_t n)
{
    /* Relaxed: only the consumer writes head, and this is the consumer. */
    rsf_ring_release_to(ring, rsf_load_rlx_u64(&ring->head) + n);
}

/*
 * The number of elements: exact while nothing moves, else a recent figure, always 0 .. capacity.
 * Any thread; wait-free.
 */
static inline uint64_t
rsf_ring_size(const rsf_ring *ring)
{
    /* Head first, with acquire: the consumer had seen a tail at least as far when it published
     * this head, so the relaxed load cannot find an earlier one and the difference is no less
     * than 0. It may be too much, as the head moves on meanwhile. */
    uint64_t head = rsf_load_acq_u64(&ring->head); /* A2 */
    uint64_t size = rsf_load_rlx_u64(&ring->tail) - head;
    return size < ring->capacity ? size : ring->capacity;
}

/* ------------------------------------------------------------------ overlap guards */

/*
 * Any thread that wants to be the producer; wait-free. False: another one is inside, and the
 * caller must keep off (a misuse to report). True: the caller is the producer until it leaves.
 */
static inline bool
rsf_ring_enter_producer(rsf_ring *ring)
{
    return rsf_exchange_sc_u32(&ring->producer_inside, 1) == 0; /* A3 S8 */
}

/* Only after rsf_ring_enter_producer returned true; wait-free. */
static inline void
rsf_ring_leave_producer(rsf_ring *ring)
{
    rsf_store_rel_u32(&ring->producer_inside, 0); /* R3 */
}

/* Any thread that wants to be the consumer; wait-free. As rsf_ring_enter_producer. */
static inline bool
rsf_ring_enter_consumer(rsf_ring *ring)
{
    return rsf_exchange_acq_u32(&ring->consumer_inside, 1) == 0; /* A4 */
}

/* Only after rsf_ring_enter_consumer returned true; wait-free. */
static inline void
rsf_ring_leave_consumer(rsf_ring *ring)
{
    rsf_store_rel_u32(&ring->consumer_inside, 0); /* R4 */
}

/* ------------------------------------------------------------------ closing */

/*
 * Any thread, any number of times; wait-free. What was committed stays to be consumed. The caller
 * then calls both take_waiting functions, and wakes the sides that they name.
 */
static inline void
rsf_ring_close(rsf_ring *ring)
{
    rsf_store_sc_u32(&ring->closed, 1); /* R5 S8 */
}

/*
 * Any thread; wait-free. A consumer that sees `closed`, and then an empty peek, has seen
 * everything committed before the close. A producer looks after it has entered, and commits
 * nothing to a closed ring.
 */
static inline bool
rsf_ring_is_closed(const rsf_ring *ring)
{
    return rsf_load_sc_u32(&ring->closed) != 0; /* A5 S8 */
}

/*
 * Consumer only; wait-free. True: the ring is closed and empty, and stays so. False on a closed
 * and empty ring means that a producer is inside. One that entered before the close may commit;
 * one that entered later only looks, finds the ring closed, and leaves. Look again shortly.
 *
 * Why closed and empty is not enough: a third thread may close between the producer's look at
 * `closed` and its commit. S8: the producer marks itself inside and then looks at `closed`; this
 * looks at `closed` and then for the mark. These four accesses are sequentially consistent, so
 * either the producer sees the close and commits nothing, or this sees the producer inside, or
 * sees it gone (A3 pairs with R3) and with that its commit.
 */
static inline bool
rsf_ring_is_drained(const rsf_ring *ring)
{
    if (!rsf_ring_is_closed(ring)) { /* S8 */
        return false;
    }
    if (rsf_load_sc_u32(&ring->producer_inside) != 0) { /* A3 S8 */
        return false;
    }
    /* Relaxed: head is the caller's own; tail's last value was just acquired with A3 or A5. */
    return rsf_load_rlx_u64(&ring->tail) == rsf_load_rlx_u64(&ring->head);
}

/* ------------------------------------------------------------------ parking */

/*
 * The events that threads sleep on are the backend's; the ring keeps a flag per side.
 *
 *     consumer                                   producer
 *       peek: empty                                commit
 *       if prepare_wait_consumer: park             if take_waiting_consumer: wake the consumer
 *       take another look, in any case
 *
 * No wake is lost, and no fence is needed, because both sides *exchange* the same flag, and
 * exchanges of one word form a chain in which each reads the one before it. If `prepare` comes
 * first, `take` reads 1 and wakes. If `take` comes first, `prepare` reads it (A6 pairs with R6) and
 * therefore sees the commit before it when it looks at the tail again. A plain load in `take`
 * would break this: it could read the flag before the commit became visible. For the same reason
 * `take` must not be skipped because an earlier look at the flag saw 0.
 *
 * `prepare` only acquires: what the waiting side wrote before it is not published by it, so what
 * `take` leads to (which event to set) is under the backend's lock. `take` needs to release only,
 * and acquires, too: clang 14 makes a plain store of a release exchange whose result is not used, and
 * a store ends the chain. (`swpal` instead of `swpl` on ARM; the same `xchg` on x86.)
 *
 * A wake may come late, for a wait that was called off meanwhile: the event must bear that.
 */

static inline void
rsf__ring_prepare_wait(uint32_t *waiting)
{
    (void)rsf_exchange_acq_u32(waiting, 1); /* A6 A7 */
}

static inline bool
rsf__ring_take_waiting(uint32_t *waiting)
{
    return rsf_exchange_acq_rel_u32(waiting, 0) != 0; /* R6 R7 */
}

/*
 * Consumer only; wait-free. True: nothing is there; the thread that commits or closes next will
 * find the flag: park. False: there is an element, or the ring is closed; the flag is down: do not
 * park.
 */
static inline bool
rsf_ring_prepare_wait_consumer(rsf_ring *ring)
{
    rsf__ring_prepare_wait(&ring->consumer_waiting); /* A6 */
    /* Relaxed: head is the caller's own. Acquire on tail is not needed here (peek does it). */
    bool empty = rsf_load_rlx_u64(&ring->tail) == rsf_load_rlx_u64(&ring->head);
    if (empty && !rsf_ring_is_closed(ring)) {
        return true;
    }
    (void)rsf__ring_take_waiting(&ring->consumer_waiting);
    return false;
}

/*
 * After a commit or a close; wait-free. True exactly once per consumer that waits: wake it.
 * May be put off to the end of a burst.
 */
static inline bool
rsf_ring_take_waiting_consumer(rsf_ring *ring)
{
    return rsf__ring_take_waiting(&ring->consumer_waiting); /* R6 */
}

/*
 * Producer only; wait-free. True: the ring is full; the thread that releases or closes next will
 * find the flag: park. False: there is room, or the ring is closed; the flag is down: do not park.
 */
static inline bool
rsf_ring_prepare_wait_producer(rsf_ring *ring)
{
    rsf__ring_prepare_wait(&ring->producer_waiting); /* A7 */
    /* Relaxed: tail is the caller's own. Acquire on head is not needed here (reserve does it). */
    uint64_t size = rsf_load_rlx_u64(&ring->tail) - rsf_load_rlx_u64(&ring->head);
    if (size >= ring->capacity && !rsf_ring_is_closed(ring)) {
        return true;
    }
    (void)rsf__ring_take_waiting(&ring->producer_waiting);
    return false;
}

/*
 * After a release or a close; wait-free. True exactly once per producer that waits: wake it.
 * May be put off to the end of a burst.
 */
static inline bool
rsf_ring_take_waiting_producer(rsf_ring *ring)
{
    return rsf__ring_take_waiting(&ring->producer_waiting); /* R7 */
}

#endif /* RSF_RING_H */

/*
 * ring_sides.h - the two sides of a ring of numbers in plain memory, for the closed programs.
 *
 * The indices begin just before they wrap round.
 */
#ifndef RSF_TESTS_RING_SIDES_H
#define RSF_TESTS_RING_SIDES_H

#include "rsf_ring.h"

#ifndef CAPACITY
#define CAPACITY 2
#endif
#define SLOTS 4 /* no less than the power of two at CAPACITY */

static rsf_ring ring;
static uint64_t slots[SLOTS];
static uint64_t put_next, got_next; /* the sides' own */

static inline void
prepare_ring(void)
{
    EXPECT(rsf_ring_init(&ring, CAPACITY) && rsf_ring_slots(&ring) <= SLOTS, "the sizes fit");
    ring.tail = ring.cached_head = ring.head = ring.cached_tail = UINT64_MAX;
    put_next = got_next = 0;
    for (int i = 0; i < SLOTS; i++) {
        slots[i] = 0;
    }
}

/* Puts in as many of the next n numbers as there is room for. */
static inline uint64_t
put(uint64_t n)
{
    uint64_t first;
    n = rsf_ring_reserve(&ring, n, &first);
    for (uint64_t i = 0; i < n; i++) {
        uint64_t next = READ(&put_next);
        WRITE(&slots[rsf_ring_slot(&ring, first + i)], next);
        WRITE(&put_next, next + 1);
    }
    rsf_ring_commit(&ring, n);
    return n;
}

/* Takes out up to n numbers. */
static inline uint64_t
take(uint64_t n)
{
    uint64_t first;
    n = rsf_ring_peek(&ring, n, &first);
    for (uint64_t i = 0; i < n; i++) {
        uint64_t next = READ(&got_next);
        EXPECT(READ(&slots[rsf_ring_slot(&ring, first + i)]) == next, "out of order");
        WRITE(&got_next, next + 1);
    }
    rsf_ring_release(&ring, n);
    return n;
}

/* After the threads: nothing was lost on the way. */
static inline void
take_the_rest(void)
{
    (void)take(CAPACITY);
    EXPECT(READ(&got_next) == READ(&put_next), "an element is lost");
    EXPECT(rsf_ring_size(&ring) == 0, "something is left");
}

#endif /* RSF_TESTS_RING_SIDES_H */

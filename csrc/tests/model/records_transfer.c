/*
 * records_transfer.c - records of two words, in bursts that wrap round the end of the storage: what
 * is put in comes out, whole and in order.
 */
#define THREADS 2
#ifndef TRIES
#define TRIES 2
#endif

#include <string.h>

#include "closed.h"

/* Word by word, so that a race is seen in each of them. */
static void
move_words(uint64_t *to, const uint64_t *from, size_t bytes)
{
    for (size_t i = 0; i < bytes / sizeof *to; i++) {
        WRITE(&to[i], READ(&from[i]));
    }
}

#undef memmove
#define memmove(to, from, bytes) move_words((uint64_t *)(to), (const uint64_t *)(from), bytes)

#include "rsf_records.h"

#define SLOTS 4
#define CAPACITY 3
#define BURST 2
#define WORDS 2 /* of a record */

static rsf_ring ring;
static uint64_t storage[SLOTS * WORDS];
static uint64_t put_next, got_next; /* the sides' own */

static void
prepare(void)
{
    EXPECT(rsf_ring_init(&ring, CAPACITY) && rsf_ring_slots(&ring) == SLOTS, "the sizes fit");
    /* The first burst is two pieces, and the indices themselves wrap round. */
    ring.tail = ring.cached_head = ring.head = ring.cached_tail = UINT64_MAX;
    put_next = got_next = 0;
    for (int i = 0; i < SLOTS * WORDS; i++) {
        storage[i] = 0;
    }
}

static void
put(void)
{
    uint64_t records[BURST * WORDS], first;
    uint64_t n = rsf_ring_reserve(&ring, BURST, &first);
    for (uint64_t i = 0; i < n * WORDS; i++) {
        WRITE(&records[i], put_next * WORDS + i);
    }
    rsf_records_put(&ring, storage, sizeof *records * WORDS, first, n, records);
    rsf_ring_commit(&ring, n);
    put_next += n;
}

static void
take(void)
{
    uint64_t records[BURST * WORDS], first;
    uint64_t n = rsf_ring_peek(&ring, BURST, &first);
    rsf_records_take(&ring, storage, sizeof *records * WORDS, first, n, records);
    rsf_ring_release(&ring, n);
    for (uint64_t i = 0; i < n * WORDS; i++) {
        EXPECT(READ(&records[i]) == got_next * WORDS + i, "a record is torn, or out of order");
    }
    got_next += n;
}

static void
body(int me)
{
    for (int i = 0; i < TRIES; i++) {
        if (me == 0) {
            put();
        } else {
            take();
        }
    }
}

static void
finish(void)
{
    take();
    take();
    EXPECT(got_next == put_next, "a record is lost");
}

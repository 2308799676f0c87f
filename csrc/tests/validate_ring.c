/*
 * validate_ring.c - the ring, one thread: all small capacities, random moves compared with plain
 * counting, indices that wrap round 2^64, records copied in and out, guards, closing and the waiting
 * flags.
 */
#include "check.h"
#include "rsf_records.h"
#include "rsf_ring.h"

#define MAX_CAPACITY 9
#define MOVES 4000
#define MAX_RECORD 5

static rsf_ring
ring_at(uint64_t capacity, uint64_t start)
{
    rsf_ring ring;
    CHECK(rsf_ring_init(&ring, capacity), "capacity %" PRIu64 " refused", capacity);
    ring.tail = ring.cached_head = ring.head = ring.cached_tail = start;
    return ring;
}

static uint64_t
min_u64(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

static void
check_init(void)
{
    rsf_ring ring = {.capacity = 77};
    CHECK(!rsf_ring_init(&ring, 0), "capacity 0 accepted");
    CHECK(!rsf_ring_init(&ring, RSF_RING_MAX_CAPACITY + 1), "capacity 2^31 + 1 accepted");
    CHECK(!rsf_ring_init(&ring, UINT64_MAX), "capacity 2^64 - 1 accepted");
    CHECK_EQUAL(ring.capacity, 77, "a refused init leaves the ring alone");
    CHECK(rsf_ring_init(&ring, RSF_RING_MAX_CAPACITY), "capacity 2^31 refused");
    CHECK_EQUAL(rsf_ring_slots(&ring), RSF_RING_MAX_CAPACITY, "slots of 2^31");
    CHECK(rsf_ring_init(&ring, RSF_RING_MAX_CAPACITY - 1), "capacity 2^31 - 1 refused");
    CHECK_EQUAL(rsf_ring_slots(&ring), RSF_RING_MAX_CAPACITY, "slots of 2^31 - 1");
}

/* Random moves against a model: two counters. The slots hold the ordinal of their element. */
static void
check_moves(uint64_t capacity, uint64_t start, uint64_t seed)
{
    rsf_ring ring = ring_at(capacity, start);
    uint64_t slots[2 * MAX_CAPACITY];
    uint64_t produced = 0, consumed = 0;
    uint64_t n_slots = rsf_ring_slots(&ring);
    CHECK(n_slots >= capacity && n_slots < 2 * capacity && (n_slots & (n_slots - 1)) == 0,
          "%" PRIu64 " slots for capacity %" PRIu64, n_slots, capacity);
    for (int move = 0; move < MOVES; move++) {
        uint64_t max = random_below(&seed, capacity + 3), first = 0;
        uint64_t size = produced - consumed;
        if (random_below(&seed, 2) == 0) {
            uint64_t n = rsf_ring_reserve(&ring, max, &first);
            CHECK_EQUAL(n, min_u64(max, capacity - size), "reserve answers what is free");
            CHECK_EQUAL(first, start + produced, "reserve: the first index");
            uint64_t used = n == 0 ? 0 : random_below(&seed, n + 1);
            for (uint64_t i = 0; i < used; i++) {
                slots[rsf_ring_slot(&ring, first + i)] = produced + i;
            }
            uint64_t part = random_below(&seed, used + 1);
            rsf_ring_commit_to(&ring, first + part);
            CHECK_EQUAL(rsf_ring_size(&ring), size + part, "what is committed is there at once");
            rsf_ring_commit(&ring, used - part);
            produced += used;
        } else {
            uint64_t n = rsf_ring_peek(&ring, max, &first);
            CHECK_EQUAL(n, min_u64(max, size), "peek answers what is there");
            CHECK_EQUAL(first, start + consumed, "peek: the first index");
            uint64_t piece = rsf_ring_contiguous(&ring, first, n);
            CHECK(piece <= n && (n == 0 || piece >= 1), "contiguous: 1 .. n");
            CHECK(n == 0 || rsf_ring_slot(&ring, first) + piece <= n_slots, "beyond the storage");
            CHECK(piece == n || rsf_ring_slot(&ring, first + piece) == 0, "not up to the end");
            uint64_t used = n == 0 ? 0 : random_below(&seed, n + 1);
            for (uint64_t i = 0; i < used; i++) {
                uint64_t slot = rsf_ring_slot(&ring, first + i);
                CHECK(slot < n_slots, "slot beyond the storage");
                CHECK_EQUAL(slots[slot], consumed + i, "first in, first out");
            }
            uint64_t part = random_below(&seed, used + 1);
            rsf_ring_release_to(&ring, first + part);
            CHECK_EQUAL(rsf_ring_size(&ring), size - part, "what is released is free at once");
            rsf_ring_release(&ring, used - part);
            consumed += used;
        }
        CHECK_EQUAL(rsf_ring_size(&ring), produced - consumed, "size");
    }
}

/* The bound is exact even where the storage is larger. */
static void
check_bound(uint64_t capacity, uint64_t start)
{
    rsf_ring ring = ring_at(capacity, start);
    uint64_t first;
    CHECK_EQUAL(rsf_ring_peek(&ring, 1, &first), 0, "an empty ring");
    for (uint64_t i = 0; i < capacity; i++) {
        CHECK_EQUAL(rsf_ring_reserve(&ring, 1, &first), 1, "room for one more");
        rsf_ring_commit(&ring, 1);
    }
    CHECK_EQUAL(rsf_ring_reserve(&ring, 1, &first), 0, "a full ring");
    CHECK_EQUAL(rsf_ring_reserve(&ring, UINT64_MAX, &first), 0, "a full ring, asked for all");
    CHECK_EQUAL(rsf_ring_size(&ring), capacity, "size of a full ring");
    CHECK_EQUAL(rsf_ring_peek(&ring, UINT64_MAX, &first), capacity, "all of a full ring");
    rsf_ring_release(&ring, 1);
    CHECK_EQUAL(rsf_ring_reserve(&ring, UINT64_MAX, &first), 1, "room for one again");
}

static void
check_guards(void)
{
    rsf_ring ring = ring_at(4, 0);
    for (int round = 0; round < 2; round++) {
        CHECK(rsf_ring_enter_producer(&ring), "nobody is inside");
        CHECK(!rsf_ring_enter_producer(&ring), "two producers at once");
        CHECK(rsf_ring_enter_consumer(&ring), "the sides do not exclude each other");
        CHECK(!rsf_ring_enter_consumer(&ring), "two consumers at once");
        rsf_ring_leave_producer(&ring);
        CHECK(!rsf_ring_enter_consumer(&ring), "the producer's leave is not the consumer's");
        rsf_ring_leave_consumer(&ring);
    }
}

static void
check_closing(void)
{
    rsf_ring ring = ring_at(4, UINT64_MAX);
    uint64_t first;
    rsf_ring_commit(&ring, rsf_ring_reserve(&ring, 2, &first));
    CHECK(!rsf_ring_is_closed(&ring) && !rsf_ring_is_drained(&ring), "open");
    CHECK(rsf_ring_enter_producer(&ring), "nobody is inside");
    rsf_ring_close(&ring);
    rsf_ring_close(&ring);
    CHECK(rsf_ring_is_closed(&ring) && !rsf_ring_is_drained(&ring), "closed, with elements");
    CHECK_EQUAL(rsf_ring_peek(&ring, 4, &first), 2, "elements survive the close");
    rsf_ring_release(&ring, 2);
    CHECK(!rsf_ring_is_drained(&ring), "a producer is inside and may still commit");
    rsf_ring_leave_producer(&ring);
    CHECK(rsf_ring_is_drained(&ring), "closed, empty, nobody inside");
}

/* Records of some bytes go through storage of just their size: a sanitizer sees a byte too many. */
static void
check_records(uint64_t capacity, uint64_t record, uint64_t start, uint64_t seed)
{
    rsf_ring ring = ring_at(capacity, start);
    uint64_t slots = rsf_ring_slots(&ring);
    unsigned char *storage = calloc((size_t)slots, (size_t)record);
    CHECK(storage != NULL, "no memory");
    uint64_t produced = 0, consumed = 0; /* bytes: each is its own ordinal */
    for (int move = 0; move < MOVES / 10; move++) {
        unsigned char bytes[MAX_CAPACITY * MAX_RECORD];
        uint64_t first, max = random_below(&seed, capacity + 1);
        if (random_below(&seed, 2) == 0) {
            uint64_t n = rsf_ring_reserve(&ring, max, &first);
            for (uint64_t i = 0; i < n * record; i++) {
                bytes[i] = (unsigned char)(produced + i);
            }
            rsf_records_put(&ring, storage, record, first, n, bytes);
            rsf_ring_commit(&ring, n);
            produced += n * record;
        } else {
            uint64_t n = rsf_ring_peek(&ring, max, &first);
            rsf_records_take(&ring, storage, record, first, n, bytes);
            rsf_ring_release(&ring, n);
            for (uint64_t i = 0; i < n * record; i++) {
                CHECK_EQUAL(bytes[i], (unsigned char)(consumed + i), "a byte of a record");
            }
            consumed += n * record;
        }
    }
    CHECK(consumed != 0 && consumed <= produced, "records have moved");
    free(storage);
}

static void
check_waiting(void)
{
    rsf_ring ring = ring_at(1, UINT64_MAX);
    uint64_t first;
    CHECK(!rsf_ring_take_waiting_consumer(&ring), "nobody waits");
    CHECK(!rsf_ring_prepare_wait_producer(&ring), "there is room");
    CHECK(!rsf_ring_take_waiting_producer(&ring), "a refused wait leaves no flag");
    CHECK(rsf_ring_prepare_wait_consumer(&ring), "empty: may park");
    rsf_ring_commit(&ring, rsf_ring_reserve(&ring, 1, &first));
    CHECK(rsf_ring_take_waiting_consumer(&ring), "the consumer waits");
    CHECK(!rsf_ring_take_waiting_consumer(&ring), "woken once");
    CHECK(!rsf_ring_prepare_wait_consumer(&ring), "there is an element");
    CHECK(!rsf_ring_take_waiting_consumer(&ring), "a refused wait leaves no flag");
    CHECK(rsf_ring_prepare_wait_producer(&ring), "full: may park");
    rsf_ring_release(&ring, rsf_ring_peek(&ring, 1, &first));
    CHECK(rsf_ring_take_waiting_producer(&ring), "the producer waits");
    CHECK(!rsf_ring_take_waiting_producer(&ring), "woken once");
    rsf_ring_close(&ring);
    CHECK(!rsf_ring_prepare_wait_consumer(&ring), "nobody parks on a closed ring");
    rsf_ring_commit(&ring, 1);
    CHECK(!rsf_ring_prepare_wait_producer(&ring), "nobody parks on a closed ring");
}

int
main(int argc, char **argv)
{
    (void)run_seconds(argc, argv);
    check_init();
    for (uint64_t capacity = 1; capacity <= MAX_CAPACITY; capacity++) {
        /* Starts before 2^64, so that the indices wrap round within the run. */
        const uint64_t starts[] = {0, 1, UINT64_MAX, UINT64_MAX - capacity, UINT64_MAX - MOVES / 4};
        for (size_t i = 0; i < sizeof starts / sizeof starts[0]; i++) {
            check_bound(capacity, starts[i]);
            check_moves(capacity, starts[i], capacity * 10 + i);
            for (uint64_t record = 1; record <= MAX_RECORD; record++) {
                check_records(capacity, record, starts[i], capacity * 100 + record * 10 + i);
            }
        }
    }
    check_guards();
    check_closing();
    check_waiting();
    return 0;
}

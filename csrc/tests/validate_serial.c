/*
 * validate_serial.c - the signal serializer, one thread playing several: random moves against a
 * model, indices that wrap round, the work counter, the latch, the cancel and the waiting flag.
 */
#include "check.h"
#include "rsf_serial.h"

#define MAX_CAPACITY 9
#define MAX_SLOTS 16
#define MOVES 4000

static rsf_serial_cell cells[MAX_SLOTS];

/* A serializer whose next index is `start`; cells as they are when all before has been released. */
static rsf_serial
serial_at(uint64_t capacity, uint64_t start)
{
    rsf_serial serial;
    CHECK(rsf_serial_init(&serial, cells, capacity), "capacity %" PRIu64 " refused", capacity);
    CHECK_EQUAL(serial.mask + 1, rsf_serial_slots(capacity), "slots");
    serial.tail = serial.head = start * RSF__SERIAL_STEP;
    for (uint64_t back = 1; start != 0 && back <= rsf_serial_slots(capacity); back++) {
        uint64_t index = (serial.head - back * RSF__SERIAL_STEP) / RSF__SERIAL_STEP;
        rsf_serial_publish(&serial, index);
    }
    return serial;
}

static void
check_init(void)
{
    rsf_serial serial = {.capacity = 77};
    CHECK(!rsf_serial_init(&serial, cells, 0), "capacity 0 accepted");
    CHECK(!rsf_serial_init(&serial, cells, RSF_SERIAL_MAX_CAPACITY + 1), "2^31 + 1 accepted");
    CHECK_EQUAL(serial.capacity, 77, "a refused init changes nothing");
    CHECK_EQUAL(rsf_serial_slots(1), 1, "slots of 1");
    CHECK_EQUAL(rsf_serial_slots(5), 8, "slots of 5");
    CHECK_EQUAL(rsf_serial_slots(8), 8, "slots of 8");
    CHECK_EQUAL(rsf_serial_slots(RSF_SERIAL_MAX_CAPACITY), RSF_SERIAL_MAX_CAPACITY, "of 2^31");
}

/* Reserve, publish out of order, peek and release, at random; only published prefixes show. */
static void
check_moves(uint64_t capacity, uint64_t start, uint64_t seed)
{
    rsf_serial serial = serial_at(capacity, start);
    bool published[MAX_SLOTS] = {false};
    uint64_t indices[MAX_SLOTS] = {0}; /* by ordinal, modulo MAX_SLOTS */
    uint64_t reserved = 0, released = 0;
    for (int move = 0; move < MOVES; move++) {
        uint64_t index = 0;
        switch (random_below(&seed, 3)) {
        case 0: {
            int answer = rsf_serial_reserve(&serial, &index);
            bool full = reserved - released == capacity;
            CHECK_EQUAL(answer, full ? RSF_SERIAL_FULL : RSF_SERIAL_OK, "the bound is exact");
            if (!full) {
                CHECK(rsf_serial_slot(&serial, index) < rsf_serial_slots(capacity), "beyond");
                indices[reserved % MAX_SLOTS] = index;
                published[reserved % MAX_SLOTS] = false;
                reserved++;
            }
            break;
        }
        case 1:
            if (reserved > released) {
                uint64_t which = released + random_below(&seed, reserved - released);
                if (!published[which % MAX_SLOTS]) {
                    published[which % MAX_SLOTS] = true;
                    rsf_serial_publish(&serial, indices[which % MAX_SLOTS]);
                }
            }
            break;
        default: {
            bool ready = reserved > released && published[released % MAX_SLOTS];
            CHECK_EQUAL(rsf_serial_peek(&serial, &index), ready, "peek sees the oldest, published");
            CHECK_EQUAL(rsf_serial_peek(&serial, &index), ready, "peek changes nothing");
            if (ready) {
                CHECK_EQUAL(index, indices[released % MAX_SLOTS], "in the order of reserve");
                rsf_serial_release(&serial);
                released++;
            }
        }
        }
        CHECK_EQUAL(rsf_serial_size(&serial), reserved - released, "size");
        CHECK_EQUAL(rsf_serial_is_idle(&serial), reserved == released, "idle");
    }
}

static void
check_work(void)
{
    rsf_serial serial = serial_at(4, 0);
    CHECK(rsf_serial_try_acquire(&serial), "nobody holds the drain");
    CHECK(!rsf_serial_try_acquire(&serial), "held");
    CHECK(rsf_serial_leave(&serial), "nobody came");
    CHECK(rsf_serial_enter(&serial), "the first holds the drain");
    CHECK(!rsf_serial_enter(&serial), "the second does not");
    CHECK(!rsf_serial_enter(&serial), "nor the third");
    CHECK(!rsf_serial_leave(&serial), "two came: drain again");
    CHECK(!rsf_serial_try_acquire(&serial), "still held");
    CHECK(!rsf_serial_enter(&serial), "still held");
    CHECK(!rsf_serial_leave(&serial), "one came: drain again");
    CHECK(rsf_serial_leave(&serial), "left");
    CHECK(rsf_serial_try_acquire(&serial), "free again");
}

static void
check_terminal(int kind, int other)
{
    rsf_serial serial = serial_at(4, (UINT64_MAX / RSF__SERIAL_STEP) - 1);
    uint64_t first, second, none;
    CHECK_EQUAL(rsf_serial_reserve(&serial, &first), RSF_SERIAL_OK, "open");
    CHECK_EQUAL(rsf_serial_reserve(&serial, &second), RSF_SERIAL_OK, "open");
    rsf_serial_publish(&serial, first);
    CHECK(!rsf_serial_is_latched(&serial), "open");
    CHECK(rsf_serial_latch_terminal(&serial), "the first terminal signal");
    CHECK(rsf_serial_is_latched(&serial), "latched");
    CHECK(!rsf_serial_latch_terminal(&serial), "the second");
    CHECK(!rsf_serial_terminate(&serial, other), "the third");
    CHECK_EQUAL(rsf_serial_terminal(&serial), RSF_SERIAL_NONE, "latched, not yet published");
    CHECK_EQUAL(rsf_serial_reserve(&serial, &none), RSF_SERIAL_TERMINATED, "the latch shuts");
    rsf_serial_publish_terminal(&serial, kind);
    CHECK_EQUAL(rsf_serial_terminal(&serial), kind, "the first kind wins");
    CHECK(rsf_serial_peek(&serial, &none) && none == first, "what came before is there");
    CHECK_EQUAL(rsf_serial_size(&serial), 2, "size of a latched mailbox");
    rsf_serial_release(&serial);
    CHECK(!rsf_serial_peek(&serial, &none), "the next is on its way");
    CHECK(!rsf_serial_is_drained(&serial), "and holds the terminal signal up");
    rsf_serial_publish(&serial, second);
    CHECK(!rsf_serial_is_drained(&serial), "published is not delivered");
    CHECK(rsf_serial_peek(&serial, &none) && none == second, "what came before is there");
    rsf_serial_release(&serial);
    CHECK(rsf_serial_is_drained(&serial), "now is the time");
    CHECK(!rsf_serial_is_idle(&serial), "nothing may be delivered past a latch");
    CHECK(!rsf_serial_peek(&serial, &none), "nothing follows");
}

static void
check_terminate(void)
{
    rsf_serial serial = serial_at(1, 0);
    CHECK(!rsf_serial_is_drained(&serial), "no terminal signal");
    CHECK(rsf_serial_terminate(&serial, RSF_SERIAL_COMPLETE), "the first terminal signal");
    CHECK(!rsf_serial_terminate(&serial, RSF_SERIAL_ERROR), "the second");
    CHECK_EQUAL(rsf_serial_terminal(&serial), RSF_SERIAL_COMPLETE, "the first wins");
    CHECK(rsf_serial_is_drained(&serial), "nothing is before it");
}

static void
check_cancel(void)
{
    rsf_serial serial = serial_at(2, 0);
    uint64_t index;
    CHECK_EQUAL(rsf_serial_reserve(&serial, &index), RSF_SERIAL_OK, "open");
    rsf_serial_publish(&serial, index);
    CHECK(!rsf_serial_is_cancelled(&serial), "not yet");
    CHECK(rsf_serial_cancel(&serial), "the first cancel");
    CHECK(!rsf_serial_cancel(&serial), "the second");
    CHECK(rsf_serial_is_cancelled(&serial), "cancelled");
    CHECK_EQUAL(rsf_serial_reserve(&serial, &index), RSF_SERIAL_CANCELLED, "shut");
    CHECK(rsf_serial_peek(&serial, &index), "what is there stays, to be dropped");
}

static void
check_waiting(void)
{
    rsf_serial serial = serial_at(1, 0);
    uint64_t index;
    CHECK(!rsf_serial_prepare_wait(&serial), "there is room");
    (void)rsf_serial_take_waiting(&serial);
    CHECK_EQUAL(rsf_serial_reserve(&serial, &index), RSF_SERIAL_OK, "open");
    rsf_serial_publish(&serial, index);
    CHECK(rsf_serial_prepare_wait(&serial), "full: may park");
    CHECK(rsf_serial_prepare_wait(&serial), "so may another");
    CHECK(rsf_serial_peek(&serial, &index), "an element");
    rsf_serial_release(&serial);
    CHECK(rsf_serial_take_waiting(&serial), "somebody waits");
    CHECK(!rsf_serial_take_waiting(&serial), "told once");
    CHECK_EQUAL(rsf_serial_reserve(&serial, &index), RSF_SERIAL_OK, "room again");
    CHECK(rsf_serial_terminate(&serial, RSF_SERIAL_COMPLETE), "the terminal signal");
    CHECK(!rsf_serial_prepare_wait(&serial), "nobody waits for room after the end");
    serial = serial_at(1, 0);
    CHECK_EQUAL(rsf_serial_reserve(&serial, &index), RSF_SERIAL_OK, "open");
    CHECK(rsf_serial_cancel(&serial), "the cancel");
    CHECK(!rsf_serial_prepare_wait(&serial), "nobody waits for room after a cancel");
}

int
main(int argc, char **argv)
{
    (void)run_seconds(argc, argv);
    check_init();
    for (uint64_t capacity = 1; capacity <= MAX_CAPACITY; capacity++) {
        const uint64_t last = UINT64_MAX / RSF__SERIAL_STEP;
        const uint64_t starts[] = {0, last, last - capacity, last - MOVES / 6};
        for (size_t i = 0; i < sizeof starts / sizeof starts[0]; i++) {
            check_moves(capacity, starts[i], capacity * 10 + i);
        }
    }
    check_work();
    check_terminal(RSF_SERIAL_COMPLETE, RSF_SERIAL_ERROR);
    check_terminal(RSF_SERIAL_ERROR, RSF_SERIAL_COMPLETE);
    check_terminate();
    check_cancel();
    check_waiting();
    return 0;
}

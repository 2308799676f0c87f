/*
 * validate_serial.c - the signal serializer against a queue: what several senders reserve, publish in
 * any order and enter for, a drain in steps, the ends, and waiting for room; indices wrap round.
 */
#include "rsf_serial.h"
#include "validate.h"

#define MOST 5
#define SLOTS 8
#define ELEMENTS 4096
#define LAST_INDEX (UINT64_MAX / RSF__SERIAL_STEP)

static bool was_published[ELEMENTS];

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    input in = {data, data + size};
    rsf_serial serial;
    rsf_serial_cell cells[SLOTS];
    uint64_t slots[SLOTS], open[MOST], index = 0, first = 0, last = 0, capacity, wip = 0, seen = 0;
    int n_open = 0, kind = RSF_SERIAL_NONE, wanted;
    bool latched = false, cancelled = false, waits = false;

    capacity = 1 + next_byte(&in) % MOST;
    EXPECT(!rsf_serial_init(&serial, cells, 0));
    EXPECT(!rsf_serial_init(&serial, cells, RSF_SERIAL_MAX_CAPACITY + 1));
    EXPECT(rsf_serial_slots(RSF_SERIAL_MAX_CAPACITY) == RSF_SERIAL_MAX_CAPACITY);
    EXPECT(rsf_serial_slots(capacity) >= capacity && rsf_serial_slots(capacity) < 2 * capacity);
    EXPECT(rsf_serial_slots(capacity) <= SLOTS && rsf_serial_init(&serial, cells, capacity));
    /* As if all before had been released. */
    uint64_t start = next_byte(&in) % 2 == 0 ? 0 : LAST_INDEX - next_byte(&in) % 20;
    serial.tail = serial.head = start * RSF__SERIAL_STEP;
    for (uint64_t back = 1; start != 0 && back <= rsf_serial_slots(capacity); back++) {
        rsf_serial_publish(&serial, start - back);
    }
    while (!is_over(&in) && last < ELEMENTS) {
        uint64_t length = last - first;
        bool published = length > 0 && was_published[first];
        switch (next_byte(&in) % 12) {
        case 0: /* a sender reserves */
            wanted = cancelled            ? RSF_SERIAL_CANCELLED
                     : latched            ? RSF_SERIAL_TERMINATED
                     : length == capacity ? RSF_SERIAL_FULL
                                          : RSF_SERIAL_OK;
            EXPECT(rsf_serial_reserve(&serial, &index) == wanted);
            if (wanted == RSF_SERIAL_OK) {
                EXPECT(index == ((start + last) & LAST_INDEX));
                slots[rsf_serial_slot(&serial, index)] = index;
                was_published[last++] = false;
                open[n_open++] = index;
            }
            break;
        case 1: /* one of those that reserved publishes */
            if (n_open > 0) {
                int which = next_byte(&in) % n_open;
                rsf_serial_publish(&serial, open[which]);
                was_published[(open[which] - start) & LAST_INDEX] = true;
                open[which] = open[--n_open];
            }
            break;
        case 2: /* any thread enters */
            if (wip < UINT64_MAX) {
                EXPECT(rsf_serial_enter(&serial) == (wip == 0));
                seen = wip == 0 ? 1 : seen;
                wip++;
            }
            break;
        case 3:
            EXPECT(rsf_serial_try_acquire(&serial) == (wip == 0));
            if (wip == 0) {
                wip = seen = 1;
            }
            break;
        case 4: /* the holder looks, and perhaps takes */
            if (wip > 0) {
                EXPECT(rsf_serial_peek(&serial, &index) == published);
                EXPECT(index == ((start + first) & LAST_INDEX));
                if (published && next_byte(&in) % 2 == 0) {
                    EXPECT(slots[rsf_serial_slot(&serial, index)] == index);
                    rsf_serial_release(&serial);
                    first++;
                }
            }
            break;
        case 5: /* the holder leaves, or not */
            if (wip > 0) {
                EXPECT(rsf_serial_leave(&serial) == (wip == seen));
                wip -= seen;
                seen = wip;
            }
            break;
        case 6:
            EXPECT(rsf_serial_latch_terminal(&serial) == !latched);
            latched = true;
            break;
        case 7:
            if (latched && kind == RSF_SERIAL_NONE) {
                kind = next_byte(&in) % 2 == 0 ? RSF_SERIAL_COMPLETE : RSF_SERIAL_ERROR;
                rsf_serial_publish_terminal(&serial, kind);
            }
            break;
        case 8:
            if (next_byte(&in) % 16 == 0) {
                EXPECT(rsf_serial_cancel(&serial) == !cancelled);
                cancelled = true;
            }
            break;
        case 9:
            EXPECT(rsf_serial_prepare_wait(&serial) ==
                   (!cancelled && !latched && length == capacity));
            waits = true;
            break;
        case 10:
            EXPECT(rsf_serial_take_waiting(&serial) == waits);
            waits = false;
            break;
        default:
            if (!latched && next_byte(&in) % 16 == 0) {
                kind = RSF_SERIAL_COMPLETE;
                EXPECT(rsf_serial_latch_terminal(&serial));
                rsf_serial_publish_terminal(&serial, kind);
                EXPECT(!rsf_serial_latch_terminal(&serial));
                latched = true;
            }
        }
        length = last - first;
        EXPECT(rsf_serial_size(&serial) == length);
        EXPECT(rsf_serial_is_latched(&serial) == latched);
        EXPECT(rsf_serial_terminal(&serial) == kind);
        EXPECT(rsf_serial_is_cancelled(&serial) == cancelled);
        if (wip > 0) {
            EXPECT(rsf_serial_is_idle(&serial) == (length == 0 && !latched));
            EXPECT(rsf_serial_is_drained(&serial) == (kind != RSF_SERIAL_NONE && length == 0));
        }
    }
    return 0;
}

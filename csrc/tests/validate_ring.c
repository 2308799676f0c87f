/*
 * validate_ring.c - the ring against a list that is moved up: order, bound, wrapping indices, parts,
 * the flags, closing, and records that are copied in and out.
 */
#include "rsf_records.h"
#include "rsf_ring.h"
#include "validate.h"

#define MOST 9

static uint64_t
least(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    input in = {data, data + size};
    rsf_ring ring;
    uint64_t slots[16], taken[MOST], list[MOST], length = 0, next = 0, first = 0, n, max, part;
    uint64_t capacity = 1 + next_byte(&in) % MOST;
    bool producer = false, consumer = false, closed = false;
    bool producer_waits = false, consumer_waits = false;

    EXPECT(!rsf_ring_init(&ring, 0) && !rsf_ring_init(&ring, RSF_RING_MAX_CAPACITY + 1));
    EXPECT(rsf_ring_init(&ring, RSF_RING_MAX_CAPACITY));
    EXPECT(rsf_ring_slots(&ring) == RSF_RING_MAX_CAPACITY);
    EXPECT(rsf_ring_init(&ring, capacity));
    EXPECT(rsf_ring_slots(&ring) >= capacity && rsf_ring_slots(&ring) <= 16);
    EXPECT(rsf_ring_slots(&ring) < 2 * capacity);
    /* Just as long as it has to be: a sanitizer sees a byte too many. */
    uint64_t *records = calloc((size_t)rsf_ring_slots(&ring), sizeof *records);
    EXPECT(records != NULL);
    uint64_t start = UINT64_MAX - next_byte(&in) % 20;
    ring.head = ring.tail = ring.cached_head = ring.cached_tail = start;
    while (!is_over(&in)) {
        switch (next_byte(&in) % 11) {
        case 0:
            max = next_number(&in);
            n = rsf_ring_reserve(&ring, max, &first);
            EXPECT(n == least(max, capacity - length) && (n == 0 || first == start + next));
            n = n > 0 ? next_byte(&in) % (n + 1) : 0; /* commits a part, or nothing */
            for (uint64_t i = 0; i < n; i++) {
                list[length + i] = slots[rsf_ring_slot(&ring, first + i)] = next++;
            }
            rsf_records_put(&ring, records, sizeof *records, first, n, list + length);
            part = n > 0 ? next_byte(&in) % (n + 1) : 0;
            rsf_ring_commit_to(&ring, first + part);
            EXPECT(rsf_ring_size(&ring) == length + part);
            rsf_ring_commit(&ring, n - part);
            length += n;
            break;
        case 1:
            max = next_number(&in);
            n = rsf_ring_peek(&ring, max, &first);
            EXPECT(n == least(max, length));
            EXPECT(rsf_ring_contiguous(&ring, first, n) <= n);
            EXPECT(n == 0 || rsf_ring_slot(&ring, first) + rsf_ring_contiguous(&ring, first, n) <=
                                 rsf_ring_slots(&ring));
            n = n > 0 ? next_byte(&in) % (n + 1) : 0;
            for (uint64_t i = 0; i < n; i++) {
                EXPECT(slots[rsf_ring_slot(&ring, first + i)] == list[i]);
            }
            rsf_records_take(&ring, records, sizeof *records, first, n, taken);
            EXPECT(memcmp(taken, list, n * sizeof *list) == 0);
            part = n > 0 ? next_byte(&in) % (n + 1) : 0;
            rsf_ring_release_to(&ring, first + part);
            EXPECT(rsf_ring_size(&ring) == length - part);
            rsf_ring_release(&ring, n - part);
            length -= n;
            memmove(list, list + n, length * sizeof *list);
            break;
        case 2:
            EXPECT(rsf_ring_enter_producer(&ring) == !producer);
            producer = true;
            break;
        case 3:
            if (producer) {
                rsf_ring_leave_producer(&ring);
            }
            producer = false;
            break;
        case 4:
            EXPECT(rsf_ring_enter_consumer(&ring) == !consumer);
            consumer = true;
            break;
        case 5:
            if (consumer) {
                rsf_ring_leave_consumer(&ring);
            }
            consumer = false;
            break;
        case 6:
            closed = closed || next_byte(&in) % 8 == 0;
            if (closed) {
                rsf_ring_close(&ring);
            }
            break;
        case 7:
            producer_waits = !closed && length == capacity;
            EXPECT(rsf_ring_prepare_wait_producer(&ring) == producer_waits);
            break;
        case 8:
            consumer_waits = !closed && length == 0;
            EXPECT(rsf_ring_prepare_wait_consumer(&ring) == consumer_waits);
            break;
        case 9:
            EXPECT(rsf_ring_take_waiting_producer(&ring) == producer_waits);
            producer_waits = false;
            break;
        default:
            EXPECT(rsf_ring_take_waiting_consumer(&ring) == consumer_waits);
            consumer_waits = false;
        }
        EXPECT(rsf_ring_size(&ring) == length);
        EXPECT(rsf_ring_is_closed(&ring) == closed);
        EXPECT(rsf_ring_is_drained(&ring) == (closed && !producer && length == 0));
    }
    free(records);
    return 0;
}

"""Builds ``rstreams_fast.core._cffi._raw``, the C core for cffi (API mode, out of line).

``setup.py`` runs this file through ``cffi_modules``. Paths are relative to the root of the
repository. Each cffi call releases the GIL, which takes more time than the work of most primitives.
So each C function ``rsf_glue_*`` calls several primitives, one after the other.
"""

from __future__ import annotations

from cffi import FFI

CDEF = """
/* rsf_demand.h */
#define RSF_EXCEEDED ...
typedef struct { int64_t value; ...; } rsf_demand;
void rsf_demand_init(rsf_demand *, int64_t initial);
int64_t rsf_demand_load(const rsf_demand *);
int64_t rsf_demand_request(rsf_demand *, int64_t n);
int64_t rsf_demand_fulfil(rsf_demand *, int64_t n);
int64_t rsf_demand_cancel(rsf_demand *);
int64_t rsf_demand_terminate(rsf_demand *);

/* rsf_ring.h */
typedef struct {
    uint64_t tail, cached_head, head, cached_tail;
    ...;
} rsf_ring;
bool rsf_ring_init(rsf_ring *, uint64_t capacity);
uint64_t rsf_ring_slots(const rsf_ring *);
uint64_t rsf_ring_size(const rsf_ring *);
void rsf_ring_close(rsf_ring *);
bool rsf_ring_is_closed(const rsf_ring *);
bool rsf_ring_is_drained(const rsf_ring *);
bool rsf_ring_prepare_wait_consumer(rsf_ring *);
bool rsf_ring_take_waiting_consumer(rsf_ring *);
bool rsf_ring_prepare_wait_producer(rsf_ring *);
bool rsf_ring_take_waiting_producer(rsf_ring *);

uint64_t rsf_ring_contiguous(const rsf_ring *, uint64_t first, uint64_t n);

/* rsf_records.h; an index may be a slot's */
void rsf_records_put(const rsf_ring *, void *storage, uint64_t size, uint64_t first, uint64_t n,
                     const void *from);
void rsf_records_take(const rsf_ring *, const void *storage, uint64_t size, uint64_t first,
                      uint64_t n, void *to);

#define RSF_GLUE_OVERLAP ...
#define RSF_GLUE_CLOSED ...
typedef struct { uint64_t at; ...; } rsf_glue_side;
int64_t rsf_glue_begin_put(rsf_ring *, rsf_glue_side *, uint64_t call, uint64_t max, bool closed);
int64_t rsf_glue_reserve(rsf_ring *, rsf_glue_side *, uint64_t max);
bool rsf_glue_end_put(rsf_ring *, rsf_glue_side *, uint64_t call, uint64_t n);
int64_t rsf_glue_begin_take(rsf_ring *, rsf_glue_side *, uint64_t call, uint64_t max);
int64_t rsf_glue_peek(rsf_ring *, rsf_glue_side *, uint64_t max);
bool rsf_glue_end_take(rsf_ring *, rsf_glue_side *, uint64_t call, uint64_t n);

/* rsf_serial.h */
#define RSF_SERIAL_OK ...
#define RSF_SERIAL_FULL ...
#define RSF_SERIAL_TERMINATED ...
#define RSF_SERIAL_CANCELLED ...
#define RSF_SERIAL_COMPLETE ...
#define RSF_SERIAL_ERROR ...
typedef struct { ...; } rsf_serial_cell;
typedef struct { ...; } rsf_serial;
uint64_t rsf_serial_slots(uint64_t capacity);
bool rsf_serial_init(rsf_serial *, rsf_serial_cell *, uint64_t capacity);
uint64_t rsf_serial_size(const rsf_serial *);
uint64_t rsf_serial_slot(const rsf_serial *, uint64_t index);
bool rsf_serial_enter(rsf_serial *);
bool rsf_serial_leave(rsf_serial *);
bool rsf_serial_latch_terminal(rsf_serial *);
void rsf_serial_publish_terminal(rsf_serial *, int kind);
bool rsf_serial_cancel(rsf_serial *);
bool rsf_serial_is_cancelled(const rsf_serial *);
bool rsf_serial_prepare_wait(rsf_serial *);
bool rsf_serial_take_waiting(rsf_serial *);

#define RSF_GLUE_BUSY ...
#define RSF_GLUE_IDLE ...
#define RSF_GLUE_HELD ...
int rsf_glue_acquire(rsf_serial *);
int rsf_glue_state(const rsf_serial *);
int64_t rsf_glue_reserve_signal(rsf_serial *);
bool rsf_glue_publish_enter(rsf_serial *, uint64_t index);
#define RSF_GLUE_NOTHING ...
#define RSF_GLUE_ELEMENT ...
#define RSF_GLUE_TERMINAL ...
#define RSF_GLUE_OVER ...
int rsf_glue_next(rsf_serial *, bool error_overtakes, uint64_t *slot);
bool rsf_glue_release(rsf_serial *);
"""

GLUE = """
#include "rsf_demand.h"
#include "rsf_records.h"
#include "rsf_ring.h"
#include "rsf_serial.h"

#define RSF_GLUE_OVERLAP (-1)
#define RSF_GLUE_CLOSED (-2)

/*
 * One side of a ring, as this backend uses it. A Python call that was interrupted does not know
 * whether it got in, so who is inside is written down here: each call has a number of its own, not
 * 0, and what ends a call does nothing unless that call is inside. Relaxed, for a call only looks
 * for its own number: if another is inside, it is not that.
 */
typedef struct {
    uint64_t at; /* the place that is meant, for the thread inside */
    uint64_t inside;
} rsf_glue_side;

/* How many of the free slots, at most max, may be written; side->at is the first one's place. */
static int64_t rsf_glue_reserve(rsf_ring *ring, rsf_glue_side *side, uint64_t max)
{
    uint64_t first;
    uint64_t n = rsf_ring_reserve(ring, max, &first);
    side->at = rsf_ring_slot(ring, first);
    return (int64_t)n;
}

static bool rsf_glue_leave(rsf_glue_side *side, uint64_t call)
{
    bool inside = rsf_load_rlx_u64(&side->inside) == call;
    if (inside) {
        rsf_store_rlx_u64(&side->inside, 0);
    }
    return inside;
}

/*
 * Enters the producer's side and reserves; after a negative answer it is not inside. A closed ring
 * is entered only with `closed`.
 */
static int64_t rsf_glue_begin_put(rsf_ring *ring, rsf_glue_side *side, uint64_t call, uint64_t max,
                                  bool closed)
{
    if (!rsf_ring_enter_producer(ring)) {
        return RSF_GLUE_OVERLAP;
    }
    if (!closed && rsf_ring_is_closed(ring)) {
        rsf_ring_leave_producer(ring);
        return RSF_GLUE_CLOSED;
    }
    rsf_store_rlx_u64(&side->inside, call);
    return rsf_glue_reserve(ring, side, max);
}

/* Commits and leaves, if this call is inside. True: wake the consumer. */
static bool rsf_glue_end_put(rsf_ring *ring, rsf_glue_side *side, uint64_t call, uint64_t n)
{
    if (!rsf_glue_leave(side, call)) {
        return false;
    }
    rsf_ring_commit(ring, n);
    rsf_ring_leave_producer(ring);
    return n != 0 && rsf_ring_take_waiting_consumer(ring);
}

static int64_t rsf_glue_peek(rsf_ring *ring, rsf_glue_side *side, uint64_t max)
{
    uint64_t first;
    uint64_t n = rsf_ring_peek(ring, max, &first);
    side->at = rsf_ring_slot(ring, first);
    return (int64_t)n;
}

static int64_t rsf_glue_begin_take(rsf_ring *ring, rsf_glue_side *side, uint64_t call, uint64_t max)
{
    if (!rsf_ring_enter_consumer(ring)) {
        return RSF_GLUE_OVERLAP;
    }
    rsf_store_rlx_u64(&side->inside, call);
    return rsf_glue_peek(ring, side, max);
}

/* Releases and leaves, if this call is inside. True: wake the producer. */
static bool rsf_glue_end_take(rsf_ring *ring, rsf_glue_side *side, uint64_t call, uint64_t n)
{
    if (!rsf_glue_leave(side, call)) {
        return false;
    }
    rsf_ring_release(ring, n);
    rsf_ring_leave_consumer(ring);
    return n != 0 && rsf_ring_take_waiting_producer(ring);
}

#define RSF_GLUE_BUSY 0 /* somebody holds the drain */
#define RSF_GLUE_IDLE 1 /* the caller holds it, and may deliver at once */
#define RSF_GLUE_HELD 2 /* the caller holds it, and must drain first */

static int rsf_glue_acquire(rsf_serial *serial)
{
    if (!rsf_serial_try_acquire(serial)) {
        return RSF_GLUE_BUSY;
    }
    return rsf_serial_is_idle(serial) && !rsf_serial_is_cancelled(serial) ? RSF_GLUE_IDLE
                                                                          : RSF_GLUE_HELD;
}

/* What reserve would answer, but for FULL. */
static int rsf_glue_state(const rsf_serial *serial)
{
    if (rsf_serial_is_cancelled(serial)) {
        return RSF_SERIAL_CANCELLED;
    }
    return rsf_serial_is_latched(serial) ? RSF_SERIAL_TERMINATED : RSF_SERIAL_OK;
}

/* The index that was reserved, or what reserve answered, negative. */
static int64_t rsf_glue_reserve_signal(rsf_serial *serial)
{
    uint64_t index;
    int answer = rsf_serial_reserve(serial, &index);
    return answer == RSF_SERIAL_OK ? (int64_t)index : -answer;
}

static bool rsf_glue_publish_enter(rsf_serial *serial, uint64_t index)
{
    rsf_serial_publish(serial, index);
    return rsf_serial_enter(serial);
}

#define RSF_GLUE_NOTHING 0
#define RSF_GLUE_ELEMENT 1  /* in *slot; release it when it has been read */
#define RSF_GLUE_TERMINAL 2 /* time for the terminal signal */
#define RSF_GLUE_OVER 3     /* cancelled: the element in *slot is to be dropped and released */

/* Holder: what to do next. */
static int rsf_glue_next(rsf_serial *serial, bool error_overtakes, uint64_t *slot)
{
    uint64_t index;
    if (error_overtakes && rsf_serial_terminal(serial) == RSF_SERIAL_ERROR &&
        !rsf_serial_is_cancelled(serial)) {
        return RSF_GLUE_TERMINAL;
    }
    if (rsf_serial_peek(serial, &index)) {
        *slot = rsf_serial_slot(serial, index);
        return rsf_serial_is_cancelled(serial) ? RSF_GLUE_OVER : RSF_GLUE_ELEMENT;
    }
    if (rsf_serial_is_drained(serial) && !rsf_serial_is_cancelled(serial)) {
        return RSF_GLUE_TERMINAL;
    }
    return RSF_GLUE_NOTHING;
}

/* Holder: frees the slot. True: wake those who wait for room. */
static bool rsf_glue_release(rsf_serial *serial)
{
    rsf_serial_release(serial);
    return rsf_serial_take_waiting(serial);
}
"""

ffibuilder = FFI()
ffibuilder.cdef(CDEF)
ffibuilder.set_source(
    "rstreams_fast.core._cffi._raw",
    GLUE,
    include_dirs=["csrc"],
    sources=["csrc/rsf_serial.c"],
)

if __name__ == "__main__":
    ffibuilder.compile(verbose=True)

/*
 * rsf_serial.h - the signal serializer: many threads signal, one at a time delivers (§1.3).
 *
 * Three parts:
 *
 * - a bounded mailbox of slot indices, many producers to one consumer. As with the ring, the owner
 *   provides the storage; index i lives in slot rsf_serial_slot(s, i), which is also its cell;
 * - a count of work in progress (WIP): the thread that raises it from 0 holds the drain, delivers,
 *   and leaves only when no other has entered meanwhile. The others leave at once;
 * - a terminal latch: the first terminal signal wins, and everything reserved before it is
 *   delivered before it, so that it comes at most once and last (§1.7).
 *
 *     any thread                                  the holder of the drain
 *       rsf_serial_reserve(s, &i) == OK             do {
 *       write slot i                                    while (rsf_serial_peek(s, &i)) {
 *       rsf_serial_publish(s, i)                            read slot i
 *       if (rsf_serial_enter(s)) drain                      rsf_serial_release(s)
 *                                                           deliver
 *     terminal signal                                   }
 *       if (rsf_serial_latch_terminal(s, ERROR)) {      if (rsf_serial_is_drained(s))
 *           store the error                                 deliver the terminal signal, once
 *           rsf_serial_publish_terminal(s)          } while (!rsf_serial_leave(s))
 *           if (rsf_serial_enter(s)) drain
 *       }
 *
 * The way past the mailbox, when nobody else signals:
 *
 *     if (rsf_serial_try_acquire(s)) {
 *         drain what is there (as above, without the leave)
 *         if (rsf_serial_is_idle(s)) deliver at once
 *         else reserve, write, publish                (an earlier element is still on its way)
 *         drain and leave (as above)
 *     }
 *
 * Labels; each release R pairs with the acquire A of its number:
 *
 *     R1 publish: cell            A1 peek: cell               the holder sees what is in the slot
 *     R2 release: head            A2 reserve: head            a slot is reused only after reading
 *     R3 leave: wip               A3 enter, try_acquire: wip  the next holder sees all that the last
 *                                                             one did: head, `seen`, the subscriber
 *     R4 enter: wip               A4 leave: wip               a holder that is called back sees what
 *                                                             was published before the call
 *     R5 publish_terminal         A5 terminal                 the holder sees the error and the latch
 *     R6 cancel                   A6 is_cancelled             a thread that sees it sees why
 *     R7 take_waiting             A7 prepare_wait             no wake is lost (as in rsf_ring.h)
 */
#ifndef RSF_SERIAL_H
#define RSF_SERIAL_H

#include "rsf_atomic.h"

#define RSF_SERIAL_MAX_CAPACITY (UINT64_C(1) << 31)

/* Answers of rsf_serial_reserve. */
#define RSF_SERIAL_OK 0
#define RSF_SERIAL_FULL 1
#define RSF_SERIAL_TERMINATED 2
#define RSF_SERIAL_CANCELLED 3

/* Kinds of terminal signal. */
#define RSF_SERIAL_NONE 0
#define RSF_SERIAL_COMPLETE 1
#define RSF_SERIAL_ERROR 2

/* One per slot: holds the sequence of the element published there, see rsf__serial_sequence. */
typedef struct rsf_serial_cell {
    uint64_t sequence;
} rsf_serial_cell;

typedef struct rsf_serial {
    /* Cold: written by init and once each by the ends, read by all. */
    rsf_serial_cell *cells;
    uint64_t capacity;
    uint64_t mask;
    uint32_t terminal;  /* RSF_SERIAL_NONE until published */
    uint32_t cancelled; /* 0 or 1 */
    uint8_t pad_cold[RSF_CACHE_LINE];

    /* The signalling threads': the next index to reserve, and the latch, packed (see below). One
     * word, so that no element can slip in between the latch and a look at it. */
    uint64_t tail;
    uint8_t pad_tail[RSF_CACHE_LINE];

    /* Work in progress: 0 when nobody holds the drain. Every thread's. */
    uint64_t wip;
    uint32_t waiting; /* a thread waits for room */
    uint8_t pad_wip[RSF_CACHE_LINE];

    /* The holder's: the next index to deliver, packed as in tail, never latched. Read by the
     * threads that reserve. */
    uint64_t head;
    uint64_t seen; /* the work in progress that the holder has answered for; the holder's alone */
    uint8_t pad_head[RSF_CACHE_LINE];
} rsf_serial;

RSF_STATIC_ASSERT(offsetof(rsf_serial, tail) - offsetof(rsf_serial, cancelled) >= RSF_CACHE_LINE,
                  "cold fields and tail are a cache line apart");
RSF_STATIC_ASSERT(offsetof(rsf_serial, wip) - offsetof(rsf_serial, tail) >= RSF_CACHE_LINE,
                  "tail and wip are a cache line apart");
RSF_STATIC_ASSERT(offsetof(rsf_serial, head) - offsetof(rsf_serial, waiting) >= RSF_CACHE_LINE,
                  "wip and the holder's fields are a cache line apart");
RSF_STATIC_ASSERT(sizeof(rsf_serial) - offsetof(rsf_serial, seen) >= RSF_CACHE_LINE,
                  "the holder's fields and what follows are a cache line apart");

/*
 * tail and head are packed: bit 0 says that a terminal signal is latched, in tail alone; the other
 * 63 are an index. Both only grow, once latched tail stays as it is, and head's index is never
 * ahead of tail's.
 */
#define RSF__SERIAL_LATCHED UINT64_C(1)
#define RSF__SERIAL_STEP UINT64_C(2) /* one element */

static inline uint64_t
rsf__serial_index(uint64_t packed)
{
    return packed / RSF__SERIAL_STEP;
}

static inline bool
rsf__serial_latched(uint64_t tail)
{
    return (tail & RSF__SERIAL_LATCHED) != 0;
}

/* The number of reserved and not yet released slots, if both words are of one moment. */
static inline uint64_t
rsf__serial_pending(uint64_t tail, uint64_t head)
{
    return rsf__serial_index(tail - head); /* the difference keeps the latch */
}

/* ------------------------------------------------------------------ before and beside */

/* The number of slots, and of cells, for a capacity: the power of two that is not less. */
uint64_t rsf_serial_slots(uint64_t capacity);

/*
 * Before any other thread knows the serializer. `cells` has rsf_serial_slots(capacity) elements
 * and outlives it. Returns false, and changes nothing, unless 1 <= capacity <=
 * RSF_SERIAL_MAX_CAPACITY.
 */
bool rsf_serial_init(rsf_serial *serial, rsf_serial_cell *cells, uint64_t capacity);

/* Where in storage a mailbox index lives: 0 .. slots-1. */
static inline uint64_t
rsf_serial_slot(const rsf_serial *serial, uint64_t index)
{
    return index & serial->mask;
}

/* What a cell holds once `index` is published in it; never 0, which is an unused cell's. */
static inline uint64_t
rsf__serial_sequence(uint64_t index)
{
    return index + 1;
}

/*
 * The number of reserved and not yet released slots: exact while nothing moves, else a recent
 * figure, always 0 .. capacity. Any thread; wait-free.
 */
static inline uint64_t
rsf_serial_size(const rsf_serial *serial)
{
    /* As in rsf_ring_size: with acquire, the head that was seen cannot be ahead of the tail. */
    uint64_t head = rsf_load_acq_u64(&serial->head); /* A2 */
    uint64_t size = rsf__serial_pending(rsf_load_rlx_u64(&serial->tail), head);
    return size < serial->capacity ? size : serial->capacity;
}

/* ------------------------------------------------------------------ signalling */

/*
 * Any thread; lock-free. RSF_SERIAL_OK: *index is the caller's, which writes its slot and
 * publishes it soon (what is reserved later waits for it). RSF_SERIAL_FULL: `capacity` elements
 * are on their way. RSF_SERIAL_TERMINATED, RSF_SERIAL_CANCELLED: it is over.
 */
static inline int
rsf_serial_reserve(rsf_serial *serial, uint64_t *index)
{
    /* Relaxed: a stale 0 only lets in an element that the holder will then drop. */
    if (RSF_UNLIKELY(rsf_load_rlx_u32(&serial->cancelled) != 0)) {
        return RSF_SERIAL_CANCELLED;
    }
    /* Relaxed, here and in the exchange below: tail carries no payload. The exchange settles which
     * thread may write the slot; A2, that its last content was read. */
    uint64_t tail = rsf_load_rlx_u64(&serial->tail);
    for (;;) {
        if (RSF_UNLIKELY(rsf__serial_latched(tail))) {
            return RSF_SERIAL_TERMINATED;
        }
        uint64_t head = rsf_load_acq_u64(&serial->head); /* A2 */
        if (RSF_UNLIKELY(rsf__serial_pending(tail, head) >= serial->capacity)) {
            /* Full, unless the tail was stale (even behind that head). If it still is the same,
             * it was so when the head was read, and the mailbox was full at that moment. */
            uint64_t again = rsf_load_rlx_u64(&serial->tail);
            if (again == tail) {
                return RSF_SERIAL_FULL;
            }
            tail = again;
            continue;
        }
        if (RSF_LIKELY(rsf_cas_rlx_u64(&serial->tail, &tail, tail + RSF__SERIAL_STEP))) {
            *index = rsf__serial_index(tail);
            return RSF_SERIAL_OK;
        }
    }
}

/* The thread that reserved `index`, once; wait-free. It calls rsf_serial_enter afterwards. */
static inline void
rsf_serial_publish(rsf_serial *serial, uint64_t index)
{
    rsf_store_rel_u64(&serial->cells[rsf_serial_slot(serial, index)].sequence,
                      rsf__serial_sequence(index)); /* R1 */
}

/*
 * Any thread, after publish, publish_terminal or cancel; wait-free.
 * True: the caller now holds the drain. False: another thread does, and will drain again.
 */
static inline bool
rsf_serial_enter(rsf_serial *serial)
{
    if (rsf_fetch_add_acq_rel_u64(&serial->wip, 1) != 0) { /* A3 R4 */
        return false;
    }
    serial->seen = 1;
    return true;
}

/*
 * Any thread; wait-free but for spurious failures of the exchange, which are retried. True: the
 * caller holds the drain, and must drain what it finds before it leaves. False: another one does.
 */
static inline bool
rsf_serial_try_acquire(rsf_serial *serial)
{
    uint64_t idle = 0;
    while (!rsf_cas_acq_u64(&serial->wip, &idle, 1)) { /* A3 */
        if (idle != 0) {
            return false;
        }
    }
    serial->seen = 1;
    return true;
}

/* ------------------------------------------------------------------ draining */

/*
 * Holder only; wait-free. True: *index is the oldest undelivered element, published. False: there
 * is none, or the oldest is reserved and not yet published; its thread will enter.
 */
static inline bool
rsf_serial_peek(const rsf_serial *serial, uint64_t *index)
{
    /* Relaxed: only the holder writes head. */
    uint64_t next = rsf__serial_index(rsf_load_rlx_u64(&serial->head));
    uint64_t sequence =
        rsf_load_acq_u64(&serial->cells[rsf_serial_slot(serial, next)].sequence); /* A1 */
    *index = next;
    return sequence == rsf__serial_sequence(next);
}

/* Holder only, after a peek that returned true and when its slot has been read; wait-free. */
static inline void
rsf_serial_release(rsf_serial *serial)
{
    /* Relaxed load: only the holder writes head. */
    uint64_t head = rsf_load_rlx_u64(&serial->head);
    rsf_store_rel_u64(&serial->head, head + RSF__SERIAL_STEP); /* R2 */
}

/*
 * Holder only; wait-free. True: nothing is reserved and undelivered, and no terminal signal is
 * latched. Then an element may be delivered past the mailbox without overtaking any.
 */
static inline bool
rsf_serial_is_idle(const rsf_serial *serial)
{
    /* Relaxed, both: head is the holder's own. A stale tail could hide only signals that nothing
     * orders before the caller's: its own, and those it knows of, are in its past. */
    return rsf_load_rlx_u64(&serial->tail) == rsf_load_rlx_u64(&serial->head);
}

/*
 * Holder only; wait-free. True: left. False: another one entered meanwhile; the caller still holds
 * the drain and must drain again.
 */
static inline bool
rsf_serial_leave(rsf_serial *serial)
{
    uint64_t seen = serial->seen;
    uint64_t before = rsf_fetch_sub_acq_rel_u64(&serial->wip, seen); /* R3 A4 */
    if (before == seen) {
        return true; /* from here on `seen` is another thread's */
    }
    serial->seen = before - seen;
    return false;
}

/* ------------------------------------------------------------------ the ends */

/*
 * Any thread; lock-free. True for the first terminal signal only: the caller stores what goes with
 * it (the error), then calls rsf_serial_publish_terminal and rsf_serial_enter. From here on
 * rsf_serial_reserve answers RSF_SERIAL_TERMINATED.
 */
bool rsf_serial_latch_terminal(rsf_serial *serial);

/* Only after rsf_serial_latch_terminal returned true, once; wait-free. kind: COMPLETE or ERROR. */
void rsf_serial_publish_terminal(rsf_serial *serial, int kind);

/*
 * Whether a terminal signal is latched, published or not: reserve would answer TERMINATED. Any
 * thread; wait-free.
 */
static inline bool
rsf_serial_is_latched(const rsf_serial *serial)
{
    /* Relaxed: it announces nothing that the caller could read; R5 does. */
    return rsf__serial_latched(rsf_load_rlx_u64(&serial->tail));
}

/*
 * The terminal signal that was published, or RSF_SERIAL_NONE. Any thread; wait-free. Elements may
 * still be on their way; delivering it before them drops them (what a fail-fast owner wants).
 */
static inline int
rsf_serial_terminal(const rsf_serial *serial)
{
    return (int)rsf_load_acq_u32(&serial->terminal); /* A5 */
}

/*
 * Holder only; wait-free. True: a terminal signal is published and every element that was
 * reserved before it has been released: the time to deliver it. False though it is published and
 * peek finds nothing: an element is reserved and not yet published; leave, its thread will enter.
 */
static inline bool
rsf_serial_is_drained(const rsf_serial *serial)
{
    if (rsf_serial_terminal(serial) == RSF_SERIAL_NONE) { /* A5 */
        return false;
    }
    /* Relaxed: A5 made the latch visible, and a latched tail does not change any more. */
    return rsf_load_rlx_u64(&serial->tail) ==
           (rsf_load_rlx_u64(&serial->head) | RSF__SERIAL_LATCHED);
}

/*
 * Any thread; wait-free. The subscriber wants nothing more (§3.5). True for the first call only.
 * What is in the mailbox stays for the holder to drop; the caller enters so that it is dropped.
 */
bool rsf_serial_cancel(rsf_serial *serial);

/* Any thread; wait-free. */
static inline bool
rsf_serial_is_cancelled(const rsf_serial *serial)
{
    return rsf_load_acq_u32(&serial->cancelled) != 0; /* A6 */
}

/* ------------------------------------------------------------------ waiting for room */

/*
 * For owners that let threads wait when the mailbox is full; the events are theirs. Any number of
 * threads may wait, one flag stands for all.
 *
 * Any thread that was answered FULL; wait-free. True: still full; the holder that releases next and
 * calls take_waiting will find the flag: park. False: there is room, or it is over: try again.
 */
bool rsf_serial_prepare_wait(rsf_serial *serial);

/*
 * The holder after a release, any thread after a publish_terminal or cancel; wait-free. True: wake *all*
 * that wait. May be put off to the end of a burst, but not beyond the leave.
 */
static inline bool
rsf_serial_take_waiting(rsf_serial *serial)
{
    /* Acquires for the compiler's sake alone, as in rsf_ring.h. */
    return rsf_exchange_acq_rel_u32(&serial->waiting, 0) != 0; /* R7 */
}

#endif /* RSF_SERIAL_H */

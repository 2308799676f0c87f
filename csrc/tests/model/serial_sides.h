/*
 * serial_sides.h - signalling threads and a subscriber in plain memory, for the closed programs.
 *
 * An element says who sent it, and as which of its own.
 */
#ifndef RSF_TESTS_SERIAL_SIDES_H
#define RSF_TESTS_SERIAL_SIDES_H

#include "rsf_serial.h"

#include "rsf_serial.c"

#ifndef CAPACITY
#define CAPACITY 2
#endif
#ifndef ELEMENTS
#define ELEMENTS 1 /* of each thread */
#endif
#ifndef TRIES
#define TRIES 1 /* of each thread, when there is no room */
#endif
#define SLOTS 4 /* no less than the power of two at CAPACITY */

static rsf_serial serial;
static rsf_serial_cell cells[SLOTS];
static uint64_t slots[SLOTS];
static uint64_t received[THREADS]; /* the subscriber's, like the next two */
static uint64_t dropped;
static uint64_t terminals;
static uint64_t error;  /* stored before the terminal signal is published */
static uint64_t reason; /* stored before the cancel */
static uint64_t accepted[THREADS];
static bool parked[THREADS];
static uint32_t wakes;           /* how often all that wait were woken */
static uint32_t ticket[THREADS]; /* wakes, before the thread parked */

static inline void
prepare_serial(void)
{
    EXPECT(rsf_serial_slots(CAPACITY) <= SLOTS, "the sizes fit");
    EXPECT(rsf_serial_init(&serial, cells, CAPACITY), "the capacity is allowed");
    for (int i = 0; i < THREADS; i++) {
        received[i] = accepted[i] = 0;
        parked[i] = false;
    }
    for (int i = 0; i < SLOTS; i++) {
        slots[i] = 0;
    }
    dropped = terminals = error = reason = 0;
    wakes = 0;
}

/* Relaxed, both: an event may bring more order, and is not needed for any. */
static inline void
wake_if_waiting(void)
{
    if (rsf_serial_take_waiting(&serial)) {
        (void)rsf_fetch_add_rlx_u32(&wakes, 1);
    }
}

/* Parks, once and for good: expect_all_woken says whether somebody woke it. */
static inline void
wait_for_room(int me)
{
    ticket[me] = rsf_load_rlx_u32(&wakes);
    parked[me] = rsf_serial_prepare_wait(&serial);
}

static inline void
receive(uint64_t element)
{
    uint64_t from = element % THREADS;
    EXPECT(READ(&terminals) == 0, "an element after the terminal signal");
    EXPECT(READ(&received[from]) == element / THREADS, "out of order");
    WRITE(&received[from], element / THREADS + 1);
}

static inline void
deliver(void)
{
    uint64_t index;
    while (rsf_serial_peek(&serial, &index)) {
        uint64_t element = READ(&slots[rsf_serial_slot(&serial, index)]);
        rsf_serial_release(&serial);
        wake_if_waiting();
        if (rsf_serial_is_cancelled(&serial)) {
            EXPECT(READ(&reason) == 1, "cancelled, and the reason is not there");
            WRITE(&dropped, READ(&dropped) + 1);
        } else {
            receive(element);
        }
    }
    if (rsf_serial_is_drained(&serial) && READ(&terminals) == 0) {
        EXPECT(READ(&error) == 1, "the terminal signal, and the error is not there");
        WRITE(&terminals, 1);
    }
}

static inline void
drain_and_leave(void)
{
    do {
        deliver();
    } while (!rsf_serial_leave(&serial));
}

static inline int
queue(uint64_t element)
{
    uint64_t index;
    int answer = rsf_serial_reserve(&serial, &index);
    if (answer == RSF_SERIAL_OK) {
        WRITE(&slots[rsf_serial_slot(&serial, index)], element);
        rsf_serial_publish(&serial, index);
    }
    return answer;
}

static inline int
signal_next(int me, uint64_t element)
{
    /* One of the threads tries to deliver past the mailbox. */
    if (me == 1 && rsf_serial_try_acquire(&serial)) {
        int answer = RSF_SERIAL_OK;
        deliver();
        if (rsf_serial_is_cancelled(&serial)) {
            answer = RSF_SERIAL_CANCELLED;
        } else if (rsf_serial_is_idle(&serial)) {
            receive(element);
        } else {
            answer = queue(element);
        }
        drain_and_leave();
        return answer;
    }
    int answer = queue(element);
    if (answer == RSF_SERIAL_OK && rsf_serial_enter(&serial)) {
        drain_and_leave();
    }
    return answer;
}

/* Signals the thread's elements, until it is over or has to wait too often. */
static inline void
signal_all(int me)
{
    for (int i = 0; i < TRIES + ELEMENTS && accepted[me] < ELEMENTS; i++) {
        int answer = signal_next(me, accepted[me] * THREADS + (uint64_t)me);
        if (answer == RSF_SERIAL_OK) {
            accepted[me]++;
        } else if (answer != RSF_SERIAL_FULL) {
            return;
        }
    }
}

/* What follows a terminal signal or a cancel. */
static inline void
enter_and_drain(void)
{
    wake_if_waiting();
    if (rsf_serial_enter(&serial)) {
        drain_and_leave();
    }
}

static inline void
expect_all_delivered(void)
{
    uint64_t missing = 0;
    for (int i = 0; i < THREADS; i++) {
        missing += accepted[i] - READ(&received[i]);
    }
    EXPECT(missing == READ(&dropped), "what was accepted was neither delivered nor dropped");
    EXPECT(rsf_serial_size(&serial) == 0, "something is left in the mailbox");
}

static inline void
expect_all_woken(void)
{
    for (int i = 0; i < THREADS; i++) {
        EXPECT(!parked[i] || rsf_load_rlx_u32(&wakes) != ticket[i], "a thread sleeps for ever");
    }
}

#endif /* RSF_TESTS_SERIAL_SIDES_H */

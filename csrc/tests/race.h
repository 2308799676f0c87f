/*
 * race.h - bodies of threads that somebody else starts: the cffi tests call them from Python
 * threads, which hold no GIL meanwhile. Each checks what it sees and answers 0 or more; a negative
 * answer says what was violated. None runs for ever: a thread that waits in vain gives up.
 *
 * No part of the core; compiled into the cffi module next to it.
 */
#ifndef RSF_TESTS_RACE_H
#define RSF_TESTS_RACE_H

#include "rsf_demand.h"
#include "rsf_ring.h"
#include "rsf_serial.h"

#define RSF_RACE_STUCK (-1)      /* waited in vain */
#define RSF_RACE_VALUE (-2)      /* lost, doubled or reordered */
#define RSF_RACE_OVERLAP (-3)    /* two at once where one may be */
#define RSF_RACE_AFTER_END (-4)  /* something came after the last thing */
#define RSF_RACE_UNEXPECTED (-5) /* an answer that the caller's setting excludes */

/* Producer: 0 .. n-1 through the ring, up to `burst` at a time, then close. Answers n. */
int64_t rsf_race_ring_produce(rsf_ring *ring, uint64_t *storage, uint64_t n, uint64_t burst);

/* Consumer: checks that 0, 1, 2 .. come, until the ring is drained. Answers how many. */
int64_t rsf_race_ring_consume(rsf_ring *ring, const uint64_t *storage, uint64_t burst);

/* Enters and leaves the producer's side n times and counts in plain memory. Answers n. */
int64_t rsf_race_ring_guard(rsf_ring *ring, uint64_t *plain, uint64_t n);

/* Requests n, `times` times. Answers the sum, until a sentinel came. */
int64_t rsf_race_demand_request(rsf_demand *demand, int64_t n, int64_t times);

/* Fulfils one by one until `total` are done or a sentinel came. Answers how many. */
int64_t rsf_race_demand_fulfil(rsf_demand *demand, int64_t total);

#define RSF_RACE_THREADS 8

/* The subscriber and the storage of a serializer under test: plain, as the holder's state is. */
typedef struct rsf_race_subscriber {
    rsf_serial serial;
    rsf_serial_cell *cells;
    uint64_t *slots; /* ordinal * RSF_RACE_THREADS + thread */
    uint64_t received[RSF_RACE_THREADS];
    uint64_t delivering;
    uint64_t terminals;
    int64_t violation; /* the first, 0 if there was none */
} rsf_race_subscriber;

/* Signals n elements as `thread`, delivering for others when it holds the drain. Answers n. */
int64_t rsf_race_serial_signal(rsf_race_subscriber *subscriber, uint64_t thread, uint64_t n);

/* Ends the stream, and delivers what is left if it holds the drain. 1 if it was the first to. */
int64_t rsf_race_serial_terminate(rsf_race_subscriber *subscriber, int kind);

#endif /* RSF_TESTS_RACE_H */

/*
 * park.pml - how the two sides of a ring park, wake each other and end, on a sequentially consistent
 * machine: nobody sleeps for good, everything put in is taken out, and the end is seen once.
 *
 * In the C core: rsf_ring_prepare_wait_*, rsf_ring_take_waiting_*, rsf_ring_close and
 * rsf_ring_is_drained, with the events of a backend, which stay set until somebody waits. A process
 * that sleeps for good is an invalid end state.
 *
 * Mutants, each of which must fail: NO_SECOND_LOOK parks without looking again after its flag is up;
 * QUIET_CLOSE closes without waking; HASTY_END takes closed and empty for the end while a producer
 * is inside.
 */
#ifndef CAPACITY
#define CAPACITY 2
#endif
#ifndef ELEMENTS
#define ELEMENTS 4
#endif

byte size;
byte put_in, taken_out;
bool closed, producer_inside, ended;
bool consumer_waiting, producer_waiting;
bool data, room; /* events */

inline wake(flag, event)
{
    bool was;
    atomic { was = flag; flag = false };
    if
    :: was -> event = true
    :: else -> skip
    fi
}

/* Parks unless there is something to do. */
inline park(flag, nothing_to_do, event)
{
    flag = true;
#ifdef NO_SECOND_LOOK
    atomic { event -> event = false }
#else
    if
    :: nothing_to_do && !closed -> atomic { event -> event = false }
    :: else -> flag = false
    fi
#endif
}

proctype producer()
{
    do
    :: put_in == ELEMENTS -> break
    :: else ->
        producer_inside = true;
        if
        :: closed -> producer_inside = false; break
        :: !closed && size < CAPACITY ->
            /* Here a third process may close. */
            atomic {
                assert(!ended);
                size++;
                put_in++
            };
            producer_inside = false;
            wake(consumer_waiting, data)
        :: !closed && size == CAPACITY ->
            producer_inside = false;
            park(producer_waiting, size == CAPACITY, room)
        fi
    od
}

proctype consumer()
{
    do
    :: size > 0 ->
        atomic { size--; taken_out++ };
        wake(producer_waiting, room)
    :: size == 0 && closed ->
#ifndef HASTY_END
        if
        :: producer_inside -> skip /* it may still put something in: look again */
        :: else ->
            if
            :: size == 0 -> ended = true; break
            :: else -> skip
            fi
        fi
#else
        ended = true;
        break
#endif
    :: size == 0 && !closed ->
        park(consumer_waiting, size == 0, data)
    od
}

proctype closer()
{
    closed = true;
#ifndef QUIET_CLOSE
    wake(consumer_waiting, data);
    wake(producer_waiting, room)
#endif
}

init
{
    atomic {
        run producer();
        run consumer();
        run closer()
    }
    _nr_pr == 1;
    assert(ended && taken_out == put_in)
}

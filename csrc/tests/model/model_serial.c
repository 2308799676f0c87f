/*
 * model_serial.c - the signal serializer on the simulated machine: the mailbox and the subscriber in
 * plain memory, the ends, and waiting for room.
 */
#include "model.h"
#include "rsf_serial.h"

#define SLOTS 2

static rsf_serial serial;
static rsf_serial_cell cells[SLOTS];
static uint64_t slots[SLOTS];
static uint64_t received[MODEL_THREADS]; /* the subscriber's, like the next two */
static uint64_t dropped;
static uint64_t terminals;
static uint64_t error;  /* stored before the terminal signal is published */
static uint64_t reason; /* stored before the cancel */
static uint64_t accepted[MODEL_THREADS];
static model_event room;

static void
prepare_capacity(uint64_t capacity)
{
    rsf_serial_init(&serial, cells, capacity);
    for (int i = 0; i < MODEL_THREADS; i++) {
        received[i] = accepted[i] = 0;
    }
    slots[0] = slots[1] = dropped = terminals = error = reason = 0;
    model_event_init(&room);
}

static void
prepare_one(void)
{
    prepare_capacity(1);
}

static void
prepare_two(void)
{
    prepare_capacity(2);
}

static void
receive(uint64_t element)
{
    uint64_t thread = element % MODEL_THREADS;
    model_check(model_read(&terminals) == 0, "an element after the terminal signal");
    model_check(model_read(&received[thread]) == element / MODEL_THREADS, "out of order");
    model_write(&received[thread], element / MODEL_THREADS + 1);
}

static void
deliver(void)
{
    uint64_t index;
    while (rsf_serial_peek(&serial, &index)) {
        uint64_t element = model_read(&slots[rsf_serial_slot(&serial, index)]);
        rsf_serial_release(&serial);
        if (rsf_serial_take_waiting(&serial)) {
            model_event_set(&room);
        }
        if (rsf_serial_is_cancelled(&serial)) {
            model_check(model_read(&reason) == 1, "cancelled, and the reason is not there");
            model_write(&dropped, model_read(&dropped) + 1);
        } else {
            receive(element);
        }
    }
    if (rsf_serial_is_drained(&serial) && model_read(&terminals) == 0) {
        model_check(model_read(&error) == 1, "the error is not there");
        model_write(&terminals, 1);
    }
}

static void
drain_and_leave(void)
{
    do {
        deliver();
    } while (!rsf_serial_leave(&serial));
}

static int
queue(uint64_t element)
{
    uint64_t index;
    int answer = rsf_serial_reserve(&serial, &index);
    if (answer == RSF_SERIAL_OK) {
        model_write(&slots[rsf_serial_slot(&serial, index)], element);
        rsf_serial_publish(&serial, index);
    }
    return answer;
}

static int
signal_next(uint64_t element, bool past_the_mailbox)
{
    int answer = RSF_SERIAL_OK;
    if (past_the_mailbox && rsf_serial_try_acquire(&serial)) {
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
    answer = queue(element);
    if (answer == RSF_SERIAL_OK && rsf_serial_enter(&serial)) {
        drain_and_leave();
    }
    return answer;
}

/* Signals up to n elements, until it is over; waits for room. */
static void
signal_all(int me, uint64_t n)
{
    while (accepted[me] < n) {
        uint64_t element = accepted[me] * MODEL_THREADS + (uint64_t)me;
        unsigned ticket = model_event_ticket(&room);
        switch (signal_next(element, me == 1)) {
        case RSF_SERIAL_OK:
            accepted[me]++;
            break;
        case RSF_SERIAL_FULL:
            if (rsf_serial_prepare_wait(&serial)) {
                model_event_wait(&room, ticket);
            }
            break;
        default:
            return;
        }
    }
}

static void
leave_over(void)
{
    if (rsf_serial_take_waiting(&serial)) {
        model_event_set(&room);
    }
    if (rsf_serial_enter(&serial)) {
        drain_and_leave();
    }
}

static void
signals(int me)
{
    signal_all(me, 2);
}

/* Anybody may ask for the size; here it never is more than 1. */
static void
sizes(int me)
{
    if (me == 0) {
        signal_all(me, 1);
    } else {
        for (int i = 0; i < 3; i++) {
            model_check(rsf_serial_size(&serial) <= 1, "more elements than were signalled");
        }
    }
}

static void
terminal(int me)
{
    if (me < 2) {
        signal_all(me, 2);
        return;
    }
    model_check(rsf_serial_latch_terminal(&serial), "the first terminal signal");
    model_write(&error, 1);
    rsf_serial_publish_terminal(&serial, RSF_SERIAL_ERROR);
    leave_over();
}

static void
cancelling(int me)
{
    if (me < 2) {
        signal_all(me, 2);
        return;
    }
    model_write(&reason, 1);
    model_check(rsf_serial_cancel(&serial), "the first cancel");
    leave_over();
}

static void
all_delivered(void)
{
    uint64_t sum = model_read(&dropped);
    for (int i = 0; i < MODEL_THREADS; i++) {
        sum -= accepted[i] - model_read(&received[i]);
    }
    model_check(sum == 0, "what was accepted was neither delivered nor dropped");
    model_check(rsf_serial_size(&serial) == 0, "something is left in the mailbox");
}

static void
delivered_and_ended(void)
{
    all_delivered();
    model_check(model_read(&terminals) == 1, "no terminal signal");
}

int
main(int argc, char **argv)
{
    static const model_scenario scenarios[] = {
        {"signals at 1", 2, prepare_one, signals, all_delivered},
        {"signals at 2", 3, prepare_two, signals, all_delivered},
        {"sizes", 2, prepare_two, sizes, all_delivered},
        {"terminal signal", 3, prepare_two, terminal, delivered_and_ended},
        {"cancel", 3, prepare_two, cancelling, all_delivered},
    };
    return model_main(argc, argv, scenarios, sizeof scenarios / sizeof scenarios[0]);
}

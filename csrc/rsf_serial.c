/*
 * rsf_serial.c - the parts of the signal serializer that run once per stream, not per element.
 */
#include "rsf_serial.h"

uint64_t
rsf_serial_slots(uint64_t capacity)
{
    return rsf__power_of_two_at_least(capacity);
}

bool
rsf_serial_init(rsf_serial *serial, rsf_serial_cell *cells, uint64_t capacity)
{
    if (capacity < 1 || capacity > RSF_SERIAL_MAX_CAPACITY) {
        return false;
    }
    uint64_t slots = rsf_serial_slots(capacity);
    for (uint64_t slot = 0; slot < slots; slot++) {
        cells[slot].sequence = 0; /* unused: no published element has sequence 0 */
    }
    /* Field by field: a whole-struct assignment is a memset, which model checkers do not follow. */
    serial->cells = cells;
    serial->capacity = capacity;
    serial->mask = slots - 1;
    serial->terminal = RSF_SERIAL_NONE;
    serial->cancelled = 0;
    serial->tail = 0;
    serial->wip = 0;
    serial->waiting = 0;
    serial->head = serial->seen = 0;
    return true;
}

bool
rsf_serial_latch_terminal(rsf_serial *serial)
{
    /* Relaxed: R5 publishes the latch together with the signal; until then a reserve that misses
     * it is one that came before it, in the one order that all changes of tail have. */
    uint64_t before = rsf_fetch_or_rlx_u64(&serial->tail, RSF__SERIAL_LATCHED);
    return !rsf__serial_latched(before);
}

void
rsf_serial_publish_terminal(rsf_serial *serial, int kind)
{
    rsf_store_rel_u32(&serial->terminal, (uint32_t)kind); /* R5 */
}

bool
rsf_serial_cancel(rsf_serial *serial)
{
    return rsf_exchange_rel_u32(&serial->cancelled, 1) == 0; /* R6 */
}

bool
rsf_serial_prepare_wait(rsf_serial *serial)
{
    (void)rsf_exchange_acq_u32(&serial->waiting, 1); /* A7 */
    if (rsf_serial_is_cancelled(serial)) {
        return false;
    }
    /* Relaxed: a look only; reserve acquires. A7 made every release before the last take visible,
     * and a release after it finds the flag; so a tail that looks stale beside its head, and
     * therefore full, belongs to a holder that is about to wake us. The flag stays up when there is
     * room, for the sake of other threads that wait. */
    uint64_t tail = rsf_load_rlx_u64(&serial->tail);
    if (rsf__serial_latched(tail)) {
        return false;
    }
    return rsf__serial_pending(tail, rsf_load_rlx_u64(&serial->head)) >= serial->capacity;
}

# Declares the C core (csrc/) for Cython. Has faster versions of some functions for a CPython with a
# GIL.

from libc.stdint cimport int64_t, uint32_t, uint64_t


cdef extern from "<stdbool.h>":
    ctypedef bint c_bool "bool"


cdef extern from "rsf_atomic.h" nogil:
    uint32_t rsf_load_acq_u32(const uint32_t *)
    void rsf_store_rel_u32(uint32_t *, uint32_t)


cdef extern from "rsf_demand.h" nogil:
    ctypedef struct rsf_demand:
        pass

    const int64_t RSF_UNBOUNDED
    const int64_t RSF_CANCELLED
    const int64_t RSF_TERMINATED
    const int64_t RSF_EXCEEDED

    void rsf_demand_init(rsf_demand *, int64_t)
    int64_t rsf_demand_load(const rsf_demand *)
    int64_t rsf_demand_request(rsf_demand *, int64_t)
    int64_t rsf_demand_fulfil(rsf_demand *, int64_t)
    int64_t rsf_demand_cancel(rsf_demand *)
    int64_t rsf_demand_terminate(rsf_demand *)


cdef extern from "rsf_ring.h" nogil:
    ctypedef struct rsf_ring:
        uint64_t capacity
        uint64_t head
        uint64_t tail

    c_bool rsf_ring_init(rsf_ring *, uint64_t)
    uint64_t rsf_ring_slots(const rsf_ring *)
    uint64_t rsf_ring_slot(const rsf_ring *, uint64_t)
    uint64_t rsf_ring_contiguous(const rsf_ring *, uint64_t, uint64_t)
    uint64_t rsf_ring_reserve(rsf_ring *, uint64_t, uint64_t *)
    void rsf_ring_commit(rsf_ring *, uint64_t)
    uint64_t rsf_ring_peek(rsf_ring *, uint64_t, uint64_t *)
    void rsf_ring_release(rsf_ring *, uint64_t)
    uint64_t rsf_ring_size(const rsf_ring *)
    void rsf_ring_leave_producer(rsf_ring *)
    void rsf_ring_leave_consumer(rsf_ring *)
    void rsf_ring_close(rsf_ring *)
    c_bool rsf_ring_is_closed(const rsf_ring *)
    c_bool rsf_ring_is_drained(const rsf_ring *)
    c_bool rsf_ring_prepare_wait_consumer(rsf_ring *)
    c_bool rsf_ring_prepare_wait_producer(rsf_ring *)
    c_bool rsf_ring_take_waiting_consumer(rsf_ring *)
    c_bool rsf_ring_take_waiting_producer(rsf_ring *)


cdef extern from "rsf_records.h" nogil:
    void rsf_records_put(const rsf_ring *, void *, uint64_t, uint64_t, uint64_t, const void *)
    void rsf_records_take(const rsf_ring *, const void *, uint64_t, uint64_t, uint64_t, void *)


cdef extern from "rsf_serial.h" nogil:
    ctypedef struct rsf_serial_cell:
        pass

    ctypedef struct rsf_serial:
        uint64_t capacity
        uint64_t mask

    const int RSF_SERIAL_OK
    const int RSF_SERIAL_FULL
    const int RSF_SERIAL_TERMINATED
    const int RSF_SERIAL_CANCELLED
    const int RSF_SERIAL_COMPLETE
    const int RSF_SERIAL_ERROR

    uint64_t rsf_serial_slots(uint64_t)
    c_bool rsf_serial_init(rsf_serial *, rsf_serial_cell *, uint64_t)
    uint64_t rsf_serial_slot(const rsf_serial *, uint64_t)
    uint64_t rsf_serial_size(const rsf_serial *)
    int rsf_serial_reserve(rsf_serial *, uint64_t *)
    void rsf_serial_publish(rsf_serial *, uint64_t)
    c_bool rsf_serial_enter(rsf_serial *)
    c_bool rsf_serial_try_acquire(rsf_serial *)
    c_bool rsf_serial_peek(const rsf_serial *, uint64_t *)
    void rsf_serial_release(rsf_serial *)
    c_bool rsf_serial_is_idle(const rsf_serial *)
    c_bool rsf_serial_leave(rsf_serial *)
    c_bool rsf_serial_latch_terminal(rsf_serial *)
    void rsf_serial_publish_terminal(rsf_serial *, int)
    int rsf_serial_terminal(const rsf_serial *)
    c_bool rsf_serial_is_drained(const rsf_serial *)
    c_bool rsf_serial_cancel(rsf_serial *)
    c_bool rsf_serial_is_cancelled(const rsf_serial *)
    c_bool rsf_serial_prepare_wait(rsf_serial *)
    c_bool rsf_serial_take_waiting(rsf_serial *)


cdef extern from *:
    """
    #include "rsf_ring.h"
    #include "rsf_serial.h"

    /*
     * With a GIL, all that a thread does between two points at which it may release the GIL is one
     * step for other threads. So guards, reading a waiting flag, and taking and leaving the
     * serializer's drain need no locked instruction. Without a GIL, use the C core's functions.
     */
    #ifdef Py_GIL_DISABLED
    #define rsfpy_enter_producer(ring) rsf_ring_enter_producer(ring)
    #define rsfpy_enter_consumer(ring) rsf_ring_enter_consumer(ring)
    #define rsfpy_take_waiting_consumer(ring) rsf_ring_take_waiting_consumer(ring)
    #define rsfpy_take_waiting_producer(ring) rsf_ring_take_waiting_producer(ring)
    #define rsfpy_serial_take_waiting(serial) rsf_serial_take_waiting(serial)
    #define rsfpy_serial_try_acquire(serial) rsf_serial_try_acquire(serial)
    #define rsfpy_serial_leave(serial) rsf_serial_leave(serial)
    #define rsfpy_enter(flag) (rsf_exchange_acq_u32((flag), 1) == 0)
    #define rsfpy_leave(flag) rsf_store_rel_u32((flag), 0)
    #else
    static inline bool
    rsfpy_enter(uint32_t *flag)
    {
        if (rsf_load_rlx_u32(flag) != 0) {
            return false;
        }
        rsf_store_rlx_u32(flag, 1);
        return true;
    }
    #define rsfpy_leave(flag) rsf_store_rlx_u32((flag), 0)
    #define rsfpy_enter_producer(ring) rsfpy_enter(&(ring)->producer_inside)
    #define rsfpy_enter_consumer(ring) rsfpy_enter(&(ring)->consumer_inside)
    #define rsfpy_take_waiting_consumer(ring) \
        (rsf_load_rlx_u32(&(ring)->consumer_waiting) != 0 && rsf_ring_take_waiting_consumer(ring))
    #define rsfpy_take_waiting_producer(ring) \
        (rsf_load_rlx_u32(&(ring)->producer_waiting) != 0 && rsf_ring_take_waiting_producer(ring))
    #define rsfpy_serial_take_waiting(serial) \
        (rsf_load_rlx_u32(&(serial)->waiting) != 0 && rsf_serial_take_waiting(serial))
    static inline bool
    rsfpy_serial_try_acquire(rsf_serial *serial)
    {
        if (rsf_load_rlx_u64(&serial->wip) != 0) {
            return false;
        }
        rsf_store_rlx_u64(&serial->wip, 1);
        serial->seen = 1;
        return true;
    }
    static inline bool
    rsfpy_serial_leave(rsf_serial *serial)
    {
        uint64_t missed = rsf_load_rlx_u64(&serial->wip) - serial->seen;
        rsf_store_rlx_u64(&serial->wip, missed);
        if (missed != 0) {
            serial->seen = missed;
        }
        return missed == 0;
    }
    #endif

    /* Lets another thread run; for short waits, until a thread that is about to act has done so. */
    #if defined(_WIN32)
    #include <windows.h>
    #define rsfpy_yield() ((void)SwitchToThread())
    #else
    #include <sched.h>
    #define rsfpy_yield() ((void)sched_yield())
    #endif
    """
    c_bool rsfpy_enter_producer(rsf_ring *) nogil
    c_bool rsfpy_enter_consumer(rsf_ring *) nogil
    c_bool rsfpy_take_waiting_consumer(rsf_ring *) nogil
    c_bool rsfpy_take_waiting_producer(rsf_ring *) nogil
    c_bool rsfpy_serial_take_waiting(rsf_serial *) nogil
    c_bool rsfpy_serial_try_acquire(rsf_serial *)
    c_bool rsfpy_serial_leave(rsf_serial *)
    c_bool rsfpy_enter(uint32_t *) nogil
    void rsfpy_leave(uint32_t *) nogil
    void rsfpy_yield() nogil

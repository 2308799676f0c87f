# cython: language_level=3
"""Waiting for one's turn on ``rsf_baton``: a spin without the GIL, then asleep on a lock."""

from libc.stdint cimport int64_t

from rstreams_fast.core._cython._csrc cimport (
    PyThread_acquire_lock,
    PyThread_allocate_lock,
    PyThread_free_lock,
    PyThread_release_lock,
    PyThread_type_lock,
    rsf_baton,
    rsf_baton_announce,
    rsf_baton_give,
    rsf_baton_init,
    rsf_spin_asleep,
    rsf_spin_take,
)

from rstreams_fast.core._common import check_spin, refuse_pickle


cdef class Baton:
    """Wakes the one thread that waits for it. ``announce`` and ``give`` are anybody's.

    ``spin``: for how long ``wait`` looks before it sleeps, and again for an announced turn, in
    seconds. It looks without the GIL, so that who holds that can call.
    """

    cdef rsf_baton baton
    cdef int64_t spin  # nanoseconds
    cdef PyThread_type_lock event
    cdef object __weakref__

    def __cinit__(self, spin):
        self.spin = <int64_t> (<double> check_spin(spin) * 1e9)
        self.event = PyThread_allocate_lock()
        if self.event == NULL:
            raise MemoryError("no memory for a baton")
        # An event is a lock that is free only between a wake and the end of the sleep.
        PyThread_acquire_lock(self.event, 1)
        rsf_baton_init(&self.baton)

    def __init__(self, *args, **kwargs):
        pass  # what __cinit__ took: for subclasses, which pass it on

    def __dealloc__(self):
        if self.event != NULL:
            # A locked lock may not be freed everywhere, and this always is.
            PyThread_release_lock(self.event)
            PyThread_free_lock(self.event)

    def announce(self):
        """Say that there is something to do soon, when the caller lets the GIL go and gives."""
        if rsf_baton_announce(&self.baton):
            PyThread_release_lock(self.event)

    def give(self):
        """Say that there is something to do now."""
        if rsf_baton_give(&self.baton):
            PyThread_release_lock(self.event)

    def wait(self, Baton owed=None):
        """Return soon after it was called, at once if it was since the last ``wait`` returned.

        ``owed`` is given its turn first, as soon as the GIL has been let go. There may be nothing
        to do: look, and wait again. Only one thread may wait.
        """
        with nogil:
            if owed is not None and rsf_baton_give(&owed.baton):
                PyThread_release_lock(owed.event)
            if rsf_spin_asleep(&self.baton, self.spin):
                PyThread_acquire_lock(self.event, 1)
            rsf_spin_take(&self.baton, self.spin)

    def __reduce__(self):
        refuse_pickle(self)

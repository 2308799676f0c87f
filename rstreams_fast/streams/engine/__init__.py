"""The base classes and parts of operators' subscriptions. No module here imports an operator.

Terms of this package:

* *drain*, or *drain loop*: the loop of a subscription that delivers elements. One thread at a time
  runs the loop: this thread *holds* the drain. A thread that brings a new event *enters* the drain.
  If no other thread holds the drain, the entering thread runs the loop.
* *stage*: a function that is applied to each element, such as the function of ``map``.
* *run*, or *fused run*: neighbouring stages, fused into one loop in C.
* *boundary*: an operator that is not a stage, such as ``publish_on``.
* *burst*: a list of elements that is delivered in one call.
* *inner subscriber*: the subscriber to one publisher, in an operator that has several publishers.
* *mail*: the queue in which inner subscribers put bursts and terminal signals for the drain loop.
* *upward work*: the calls that an operator makes to its publishers' ``subscribe`` and ``request``.
* *turn*: a time slice of one millisecond. A drain on an event loop or executor works for one turn,
  and then lets other work run.
* *trampoline*: a boundary that queues calls. So the calls in a long chain of operators do not nest.
* *custody*: the record of the elements that were neither delivered nor dropped yet. When the
  stream ends, the custody passes each of these elements to the user's ``on_discard`` hook.

An operator's subscription derives from one of the base classes below, and holds further parts. The
base class and the parts depend on what the operator does:

=====================================  =======================  ====================================
What the operator does                 Base class               Parts, and methods to override
=====================================  =======================  ====================================
passes each element on immediately     ``PushSubscription``,    a ``PushObserver``, if the operator
(``timeout``, ``subscribe_on``)        without a subclass       must see requests and deliveries
holds elements, and decides how many   ``OperatorSubscriber``   ``InputRing`` (a buffer), ``Waits``
to request (``publish_on``)                                     (measures waiting times); override
                                                                ``on_next`` and ``_work``
subscribes to several publishers at    ``FanIn``                ``Prefetch``, an ``Inner`` for each
the same time (``merge``, ``zip``)                              publisher; override ``_work``
subscribes to one publisher after      ``SubscriptionArbiter``, ``PublisherChooser``; ``Companion``
another (``concat``, ``retry``)        without a subclass       if it has a second publisher, too
delivers elements on another thread    ``OperatorSubscriber``   an executor, passed to ``Drain``,
(``publish_on``, ``map_async``)                                 which runs the drain loop on it
acts at a given time (``debounce``,    any                      a ``Deadline``
``delay_elements``)
=====================================  =======================  ====================================

Each base class holds a ``DemandCounter`` (counts the requested elements that are not delivered yet)
and a ``Wip`` ("work in progress": lets one thread at a time work). An ``Upstream`` holds each
subscription to a publisher, and contains ``Latch`` objects (flags that are set only once).

Invariants of all base classes:

* **One drain.** The ``Wip`` in ``_wip`` lets one thread at a time run the drain loop, and no thread
  before ``on_subscribe`` has returned. A thread with a new event stores the event in a field that
  ``_work`` reads, and then calls ``_enter()``. The drain loop calls ``_work`` until the result is
  false, which means that no work is left.
* **The drain of a fan-in calls no publisher.** A fan-in is a subscription with several publishers.
  A call to a publisher may take long, and the drain loop must deliver elements meanwhile. So the
  drain loop only stores the due calls. A thread that has left the drain makes them in ``_upward``.
* **The end is read before the elements.** After its last element, upstream sets ``_completed`` or
  ``_late_error`` (an error that is signalled after the elements in the buffer). The drain loop
  reads these two fields before it reads the buffer. If a field was set and the buffer is then
  empty, all elements were delivered.
* **One end.** Exactly one call of ``_demand.cancel()`` or ``_demand.terminate()`` returns true, and
  decides how the stream ends. The caller then calls ``_stop``, which cancels upstream. The thread
  that holds the drain calls ``_drop_references`` once, to clear the fields. After that, another
  thread may still add an element or an error. ``_report_undelivered`` and ``_forget_upward`` remove
  such late elements, and report errors that no subscriber received.
* **Deques are replaced, not emptied.** At the end of the stream, another thread may be using a
  deque. So ``_drop_references`` stores a new deque in the field (§3.13).
* **An error keeps no element alive.** A traceback keeps stack frames and their variables. So a
  method that calls a user's function deletes variables that hold elements, in ``finally`` (§3.13).
* **Dropped elements.** An operator that drops elements before the end of the stream calls
  ``_discard(elements)``. At the end, ``Custody`` itself finds the elements that are dropped.
"""

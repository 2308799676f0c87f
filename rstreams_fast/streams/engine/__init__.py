"""The parts from which operators build their subscriptions. No file here depends on an operator.

The words of this package:

* *drain*: the loop of a subscription that delivers elements. One thread at a time runs the loop;
  this thread *holds* the drain. A thread *enters* to tell the drain of a new event. If no thread
  holds the drain, the entering thread runs it.
* *run*: neighbouring stages (functions for each element), fused into one loop in C.
* *boundary*: a part of a stream that is not a stage, such as ``publish_on``.
* *burst*: a list of elements that is delivered at once.
* *inner*: the subscriber to one of several publishers above an operator.
* *mail*: the queue in which inners put bursts and terminal signals for a drain.
* *upward work*: the calls of the publishers' ``subscribe`` and ``request``.
* *turn*: the millisecond for which a drain may occupy an event loop or an executor.
* *trampoline*: a boundary that queues calls, so that calls in a long chain do not nest.
* *custody*: the record of the elements that were neither delivered nor dropped yet. When the
  stream ends, ``on_discard`` calls the user's hook for these elements.

An operator's subscription is one class. It derives from ``Drain``, or from a subclass of ``Drain``,
and holds the parts that it needs. The choice depends on what the operator does:

=====================================  ======================  =====================================
The operator                           Base                    Parts, and the methods it fills in
=====================================  ======================  =====================================
passes each element on as it comes     ``PushSubscription``    none; a ``PushObserver``, if it
(``timeout``, ``subscribe_on``)        itself                  must see requests and deliveries
holds elements, makes own requests     ``OperatorSubscriber``  ``InputRing``, ``Waits``;
(``publish_on``, ``batch`` by time)                            ``on_next``, ``_work``
has several publishers at once         ``FanIn``               ``Prefetch``, an ``Inner`` for each;
(``merge``, ``zip``, ``switch_map``)                           ``_work`` or ``_take``
has one publisher after another        ``SubscriptionArbiter`` ``PublisherChooser`` picks the next;
(``concat``, ``retry``, ``repeat``)    itself                  a ``Companion`` adds a second one
works on another thread                ``OperatorSubscriber``  an executor, as an argument of
(``publish_on``, ``map_async``)                                ``Drain``, which schedules the work
works by the clock                     any                     a ``Deadline``
(``debounce``, ``delay_elements``)
=====================================  ======================  =====================================

All bases hold a ``Wip``, a ``Latch`` and a ``DemandCounter`` of ``rstreams_fast.core``. A base that
subscribes to a publisher also holds an ``Upstream``, which guards the publisher's subscription.

The invariants of all bases:

* **One drain.** The ``Wip`` in ``_wip`` lets one thread at a time run the drain. It lets no thread
  run the drain before ``on_subscribe`` has returned. A thread with an event stores the event in a
  field that ``_work`` reads, and then calls ``_enter()``. ``_work`` returns true if there is more
  to do at once.
* **The drain of a fan-in calls no publisher.** The drain stores the call that is due. The thread
  that leaves the drain makes the call in ``_upward``, which returns true if it has made a call.
* **The end is read before the elements.** Upstream sets ``_completed`` or ``_late_error`` after its
  last element. The drain reads these fields first, and then the buffer. So if one of them was set
  and the buffer is empty, all elements were delivered.
* **One end.** The call of ``_demand.cancel()`` or ``terminate()`` that returns true decides how the
  stream ends. ``_stop`` cancels upstream. The thread that holds the drain calls
  ``_drop_references``, once, which clears the fields. Another thread may add an element later. So
  ``_report_undelivered`` and ``_forget_upward`` clear late elements, and report errors that no
  subscriber received.
* **Deques are replaced, not emptied.** At the end of the stream another thread may be using a
  deque. Then ``_drop_references`` puts a new deque in its place (§3.13).
* **An error keeps no element.** The traceback of an error keeps stack frames and their variables.
  So a method that calls the user's function deletes variables with elements in ``finally`` (§3.13).
* **Dropped elements.** An operator that drops elements while the stream goes on calls
  ``_discard(elements)``. ``Custody`` finds the elements that are dropped at the end.
"""

"""The parts that carry a subscription. No file here knows an operator.

An operator's subscription is one class. It derives from ``Drain``, or from one of two classes that
do, and holds the parts that it needs. Which of them depends on what the operator does:

=====================================  ======================  =====================================
The operator                           Base                    Parts, and the methods it fills in
=====================================  ======================  =====================================
passes each element on as it comes     ``PushSubscription``    none; a ``Watch``, if the operator
(``timeout``, ``subscribe_on``)        itself                  must see requests and deliveries
holds elements, and asks by itself     ``OperatorSubscriber``  ``InputRing``, ``Waits``;
(``publish_on``, ``batch`` by time)                            ``on_next``, ``_work``
has several publishers at once         ``FanIn``               ``Prefetch``, an ``Inner`` for each;
(``merge``, ``zip``, ``switch_map``)                           ``_work`` or ``_take``
has one publisher after another        ``SubscriptionArbiter`` a ``Following`` chooses the next;
(``concat``, ``retry``, ``repeat``)    itself                  a ``Companion`` is a publisher beside
works on another thread                ``OperatorSubscriber``  the resource is an argument of
(``publish_on``, ``map_async``)                                ``Drain``, which schedules the work
works by the clock                     any                     a ``Deadline``
(``debounce``, ``delay_elements``)
=====================================  ======================  =====================================

All bases hold ``Wip`` and ``Latch`` of ``rstreams_fast.core``, a ``DemandCounter``, and, below a
publisher, an ``Upstream``: the subscription above, which may misbehave.

The invariants of all bases:

* **One drain.** ``_wip`` is held from the start until ``on_subscribe`` has returned. A thread with
  news stores it in a field that ``_work`` reads, and then calls ``_enter()``. ``_work`` returns
  true if there is more to do at once.
* **No call upward from the drain of a fan-in.** The drain leaves a note; the thread that leaves the
  drain acts on it in ``_upward``. ``_upward`` returns true only if it has made a call.
* **The end is read before the elements.** ``_completed``, and ``_late_error``, are read before the
  buffer: an empty buffer is then the end, and no element that came before it is lost.
* **One end.** The call of ``_demand.cancel()`` or ``terminate()`` that returns true decides how the
  stream ends. ``_stop`` cancels upstream. The holder of the drain calls
  ``_drop_references``, once, which clears the fields.
  A thread may add an element later: ``_report_undelivered`` and ``_forget_upward`` clear late
  elements, and report errors that no subscriber received.
* **References are replaced, not emptied.** Another thread may be using a deque when the stream
  ends, so the end replaces the deque by a new one (§3.13).
* **An error keeps no element.** Its traceback keeps the frames that it passed, and their variables.
  A method that calls the user's function deletes variables with elements in ``finally`` (§3.13).
* **Dropped elements.** An operator that drops elements while the stream goes on calls
  ``_discard(elements)``; ``Custody`` itself finds the elements that the end drops.
"""

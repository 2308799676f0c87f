"""Bridges to other libraries: one module for each library.

``rstreams_fast.interop.reactivex`` converts observables of RxPY. ``rstreams_fast.interop.rsocket``
sends streams over RSocket. ``rstreams_fast.interop.asyncio_streams`` has a subscriber that writes
to a socket.
"""

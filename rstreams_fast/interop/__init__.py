"""Bridges to other libraries, a module for each library.

``rstreams_fast.interop.reactivex``: observables of RxPY. ``rstreams_fast.interop.rsocket``: streams
over RSocket. ``rstreams_fast.interop.asyncio_streams``: a subscriber that writes to a socket.
"""

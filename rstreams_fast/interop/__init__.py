"""Bridges to other libraries: one module each, which imports only that library.

``rstreams_fast.interop.reactivex``: observables of RxPY. ``rstreams_fast.interop.rsocket``: streams
over RSocket. ``rstreams_fast.interop.asyncio_streams``: writing to a socket of asyncio's.
"""

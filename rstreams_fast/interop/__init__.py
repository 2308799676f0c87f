"""Neighbours: a file each, which is imported when it is asked for, and needs that neighbour only.

``rstreams_fast.interop.reactivex``: observables of RxPY. ``rstreams_fast.interop.rsocket``: streams
over RSocket. ``rstreams_fast.interop.asyncio_streams``: writing to a socket of asyncio's.
"""

"""``Limit`` bounds the calls to a service across stages, processes and hosts."""

from collections.abc import Callable

def fused(
    n: int,
    map_: Callable[[int], int],
    predicate: Callable[[int], object],
    on_next: Callable[[int], object],
    /,
) -> None: ...
def atomic_adds(n: int, /) -> int: ...
def nothing(x: object, /) -> None: ...

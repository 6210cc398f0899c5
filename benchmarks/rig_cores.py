"""One core for what is measured, another for what measures it."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple


class Cores(NamedTuple):
    """`system`: of what is measured; `rig`: of load and mock engine. None where a process
    cannot be bound to a core, as on macOS."""

    system: int | None
    rig: int | None


def two_cores() -> Cores:
    """The first two that this process may use; (None, None) where there are not two."""
    if not hasattr(os, "sched_setaffinity"):
        return Cores(None, None)
    able = sorted(os.sched_getaffinity(0))
    return Cores(able[0], able[1]) if len(able) > 1 else Cores(None, None)


@contextmanager
def on_core(core: int | None) -> Iterator[None]:
    """This thread, and what it starts meanwhile, on one core."""
    if core is None:
        yield
        return
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {core})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)

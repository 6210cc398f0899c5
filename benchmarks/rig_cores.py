"""One core for what is measured, another for what measures it."""

import os
import subprocess
import sys
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


@contextmanager
def kept_awake(core: int | None) -> Iterator[None]:
    """Something that runs on the core whenever nothing else wants it (Linux).

    To wake a core that sleeps costs whoever sends it something up to 30 us in a virtual
    machine, more than the sending: a cost of idleness, which no busy server has.
    """
    if core is None or not hasattr(os, "SCHED_IDLE"):
        yield
        return
    with on_core(core):
        idler = subprocess.Popen([sys.executable, "-c", _SPIN])
    try:
        yield
    finally:
        idler.kill()
        idler.wait()


_SPIN = "import os\nos.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))\nwhile True: pass"

"""The event loop of a load generator: the quick one, with few pauses for garbage."""

import asyncio
import gc
import resource
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

T = TypeVar("T")


def run(main: Coroutine[Any, Any, T]) -> T:
    """Like `asyncio.run`, on uvloop where it is installed."""
    try:
        import uvloop
    except ImportError:
        factory = None
    else:
        factory = uvloop.new_event_loop
    _allow_files()
    with few_pauses(), asyncio.Runner(loop_factory=factory) as runner:
        return runner.run(main)


@contextmanager
def few_pauses() -> Iterator[None]:
    """What is there already is not looked at again by the garbage collector, which runs less
    often: a full run over a large heap takes longer than a chunk may be late."""
    before = gc.get_threshold()
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 50, 1000)
    try:
        yield
    finally:
        gc.set_threshold(*before)
        gc.unfreeze()


def _allow_files() -> None:
    """As many open connections as this user may have."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        except (ValueError, OSError):  # macOS says "unlimited" and means less
            return

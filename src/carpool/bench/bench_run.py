"""Level after level against one endpoint; whatever ends it, what was measured stays."""

import asyncio
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from carpool.bench.errors import BenchError
from carpool.bench.level import Level
from carpool.bench.level_result import LevelResult
from carpool.bench.prompts import PromptSource
from carpool.bench.run_level import OnProgress, run_level
from carpool.bench.target import Target


@dataclass(slots=True)
class BenchRun:
    """`results` so far; `trouble`: why a later level measured nothing; `is_stopped`: Ctrl-C."""

    target: Target
    notes: Sequence[str] = ()
    results: list[LevelResult] = field(default_factory=list)
    trouble: str | None = None
    is_stopped: bool = False


async def run_levels(
    run: BenchRun,
    levels: Sequence[Level],
    prompts: PromptSource,
    *,
    temperature: float | None = None,
    on_progress: OnProgress | None = None,
    on_level: Callable[[Level], None] | None = None,
) -> None:
    """Fills `run`. Ctrl-C ends the level under way and keeps what it has.

    Raises BenchError where the first level measured nothing.
    """
    with stop_at_ctrl_c() as stop:
        for level in levels:
            if on_level is not None:
                on_level(level)
            try:
                result = await run_level(
                    run.target,
                    level,
                    prompts,
                    on_progress=on_progress,
                    stop=stop,
                    temperature=temperature,
                )
            except BenchError as error:
                if not run.results:
                    raise
                run.trouble = str(error)
                return
            run.is_stopped = stop.is_set()
            if result.num_requests:
                run.results.append(result)
            if run.is_stopped:
                return


@contextmanager
def stop_at_ctrl_c() -> Iterator[asyncio.Event]:
    """Set by the first Ctrl-C; the second one ends the program as ever."""
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()

    def interrupt() -> None:
        stop.set()
        loop.remove_signal_handler(signal.SIGINT)

    loop.add_signal_handler(signal.SIGINT, interrupt)
    try:
        yield stop
    finally:
        loop.remove_signal_handler(signal.SIGINT)

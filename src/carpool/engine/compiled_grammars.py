"""The grammars in use, compiled: tried out first, kept while they may be asked for again."""

import asyncio
import os
import sys
import threading
from collections import OrderedDict
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from functools import partial
from typing import NamedTuple

from llguidance import LLMatcher

from carpool.engine.client import QueueFull
from carpool.engine.grammar_trials import GrammarTrials
from carpool.engine.guidance import GrammarMatcher, GuidanceVocabulary

MAX_BYTES_KEPT = 64 * 2**20
"""What grammars may take to be there for the next request that has them."""
MAX_BYTES_IN_USE = 1024 * 2**20
"""What the grammars of all requests may take, each counted for each request that has it."""
_LEAST_BYTES = 2**20
_BACKGROUND_NICENESS = 10


class _Compiled(NamedTuple):
    start: LLMatcher
    num_bytes: int


class CompiledGrammars:
    """Makes matchers for requests. One thread compiles, which no other work waits for.

    Use it from one event loop, and `stop` it there.
    """

    def __init__(self, vocabulary: GuidanceVocabulary) -> None:
        self._vocabulary = vocabulary
        self._trials = GrammarTrials(vocabulary.table)
        self._thread = ThreadPoolExecutor(1, "grammars", _be_nice)
        self._compiled: OrderedDict[str, _Compiled] = OrderedDict()
        self._is_compiling = asyncio.Lock()
        self._num_bytes_in_use = 0

    async def start(self) -> None:
        """Be ready for the first grammar before it comes."""
        await self._trials.start()

    async def stop(self) -> None:
        self._thread.shutdown(wait=False, cancel_futures=True)
        await self._trials.stop()

    @asynccontextmanager
    async def matcher(self, grammar: str, person_id: str = "") -> AsyncIterator[GrammarMatcher]:
        """A matcher at the start of `grammar`, which has its memory while the `async with` lasts.

        Raises GrammarError if it cannot be used, QueueFull while there is no room for it.
        """
        compiled = await self._get(grammar, person_id)
        if self._num_bytes_in_use + compiled.num_bytes > MAX_BYTES_IN_USE:
            raise QueueFull(
                f"the grammars of the requests that run or wait take "
                f"{self._num_bytes_in_use / 2**20:,.0f} MiB, and the limit is "
                f"{MAX_BYTES_IN_USE / 2**20:,.0f} MiB; try again in 2 s",
                2,
            )
        self._num_bytes_in_use += compiled.num_bytes
        try:
            yield GrammarMatcher(compiled.start)
        finally:
            self._num_bytes_in_use -= compiled.num_bytes

    async def _get(self, grammar: str, person_id: str) -> _Compiled:
        if grammar not in self._compiled:
            num_bytes = await self._trials.num_bytes(grammar, person_id)
            async with self._is_compiling:
                if grammar not in self._compiled:
                    loop = asyncio.get_running_loop()
                    compile_it = partial(self._vocabulary.compile, grammar)
                    start = await loop.run_in_executor(self._thread, compile_it)
                    self._keep(grammar, _Compiled(start, max(num_bytes, _LEAST_BYTES)))
        self._compiled.move_to_end(grammar)
        return self._compiled[grammar]

    def _keep(self, grammar: str, compiled: _Compiled) -> None:
        self._compiled[grammar] = compiled
        num_bytes = sum(each.num_bytes for each in self._compiled.values())
        while num_bytes > MAX_BYTES_KEPT and len(self._compiled) > 1:
            _, evicted = self._compiled.popitem(last=False)
            num_bytes -= evicted.num_bytes


def _be_nice() -> None:
    """Tokens come before grammars. Linux alone has this for a thread."""
    if sys.platform == "linux":
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _BACKGROUND_NICENESS)

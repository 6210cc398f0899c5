"""Has grammars tried out in a process of their own (`grammar_trial`), and knows the outcomes."""

import asyncio
import hashlib
import json
import sys
from collections import OrderedDict
from itertools import count

from carpool.engine.client import QueueFull
from carpool.engine.grammar_compiler import TokenTable
from carpool.engine.grammar_error import GrammarError
from carpool.engine.grammar_trial import Verdict, table_to_json
from carpool.engine.turns import Turns

MAX_WAITING = 64
MAX_VERDICTS = 4096


class TrialProcessError(RuntimeError):
    """The process that tries grammars out ended."""


class GrammarTrials:
    """One grammar is tried at a time, persons in turns; each is tried once.

    The process is started for the first, or by `start`, and anew should it end. Use it from one
    event loop, and `stop` it there.
    """

    def __init__(self, table: TokenTable) -> None:
        self._table = table
        self._process: asyncio.subprocess.Process | None = None
        self._turns = Turns()
        self._numbers = count()
        self._verdicts: OrderedDict[bytes, Verdict] = OrderedDict()

    async def start(self) -> None:
        """Have the process ready before the first grammar comes."""
        async with self._turns.turn(""):
            await self._running_process()

    async def num_bytes(self, grammar: str, person_id: str = "") -> int:
        """Bytes of memory that `grammar` takes.

        Raises GrammarError if it cannot be used, QueueFull while too many wait.
        """
        digest = hashlib.blake2b(grammar.encode("utf-8", "surrogatepass"), digest_size=16).digest()
        if digest not in self._verdicts:
            if self._turns.num_waiting >= MAX_WAITING:
                raise QueueFull(f"{MAX_WAITING} grammars wait to be compiled; try again in 2 s", 2)
            async with self._turns.turn(person_id):
                if digest not in self._verdicts:
                    self._remember(digest, await self._tried(grammar))
        self._verdicts.move_to_end(digest)
        verdict = self._verdicts[digest]
        if verdict.error is not None:
            raise GrammarError(verdict.error)
        return verdict.num_bytes

    async def stop(self) -> None:
        process, self._process = self._process, None
        if process is not None and process.returncode is None:
            process.kill()
            await process.wait()

    def _remember(self, digest: bytes, verdict: Verdict) -> None:
        self._verdicts[digest] = verdict
        if len(self._verdicts) > MAX_VERDICTS:
            self._verdicts.popitem(last=False)

    async def _tried(self, grammar: str) -> Verdict:
        try:
            return await self._ask(grammar)
        except (TrialProcessError, OSError):
            await self.stop()
            return await self._ask(grammar)

    async def _ask(self, grammar: str) -> Verdict:
        process = await self._running_process()
        if process.stdin is None or process.stdout is None:
            raise TrialProcessError("no pipes")
        number = next(self._numbers)
        process.stdin.write(json.dumps([number, grammar]).encode() + b"\n")
        await process.stdin.drain()
        while line := await process.stdout.readline():
            answered, *verdict = json.loads(line)
            # Another number is the answer to somebody who did not wait for it.
            if answered == number:
                return Verdict(*verdict)
        raise TrialProcessError("the process that tries grammars out has ended")

    async def _running_process(self) -> asyncio.subprocess.Process:
        if self._process is None or self._process.returncode is not None:
            self._process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "carpool.engine.grammar_trial"),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.DEVNULL,
                # A signal from the terminal is for the engine; this process ends with its input.
                start_new_session=True,
            )
            if self._process.stdin is not None:
                self._process.stdin.write(table_to_json(self._table).encode() + b"\n")
                await self._process.stdin.drain()
        return self._process

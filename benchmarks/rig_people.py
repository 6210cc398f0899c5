"""People who ask an engine over streams, and what they are served."""

import asyncio
import json
import random
import re
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from benchmarks.rig_connection import Connect, Connection, post

CHAT = "/v1/chat/completions"
PROMPT_WEIGHT, OUTPUT_WEIGHT = 1.0, 2.0
_CONTENT = re.compile(rb'"content": ?"(?!")')
_TAIL_BYTES = 2048
_WORDS = """
    the of and to in is that for it as was with be by on not he his but at are this have from
    or had an they which one you were all her she there would their we him been has when who
    will no more if out so up said what its about than into them can only other time new some
    could these two may first then do any like my now over such our man me even most made after
    also well many must through years much where your way down should because long each just
    state those people too mr how little good world make very year still see own work men day
    get here old life both between being under three never know same last another while us off
    might great go come since against right came take used himself few house use place during
    high without again home around small however found part school every
"""


class Refused(Exception):
    """An answer that is none: a benchmark with such a one says nothing."""


@dataclass(slots=True)
class StreamedAnswer:
    """Times are seconds of one clock. `chunks`: when each piece of text came."""

    due: float
    chunks: list[float] = field(default_factory=list)
    prompt_tokens: int = 0
    output_tokens: int = 0
    is_complete: bool = False

    @property
    def ttft(self) -> float | None:
        return self.chunks[0] - self.due if self.chunks else None


@dataclass(frozen=True, slots=True)
class Served:
    """Tokens in a window of `seconds`."""

    prompt_tokens: float
    output_tokens: float
    seconds: float

    @property
    def tok_s(self) -> float:
        """Prompt and output tokens per second."""
        return (self.prompt_tokens + self.output_tokens) / self.seconds

    @property
    def service(self) -> float:
        """Weighted tokens, as fair share counts them: a prompt token once, one of output twice."""
        return PROMPT_WEIGHT * self.prompt_tokens + OUTPUT_WEIGHT * self.output_tokens


def served(answers: Sequence[StreamedAnswer], begin: float, end: float) -> Served:
    """What `answers` brought between `begin` and `end`.

    A prompt counts when its first text comes, output in equal parts with each piece of text.
    Answers that were cut off, of which no usage is known, count as the mean of the whole ones
    does per piece.
    """
    whole = [answer for answer in answers if answer.is_complete and answer.chunks]
    num_chunks = sum(len(answer.chunks) for answer in whole)
    per_chunk = sum(answer.output_tokens for answer in whole) / num_chunks if whole else 1.0
    per_prompt = sum(answer.prompt_tokens for answer in whole) / len(whole) if whole else 0.0
    prompt = output = 0.0
    for answer in answers:
        if not answer.chunks:
            continue
        is_known = answer.is_complete
        inside = sum(begin <= at < end for at in answer.chunks)
        output += inside * (answer.output_tokens / len(answer.chunks) if is_known else per_chunk)
        if begin <= answer.chunks[0] < end:
            prompt += answer.prompt_tokens if is_known else per_prompt
    return Served(prompt, output, end - begin)


def gap_percent(one: float, other: float) -> float:
    """By how much two services differ, in percent of their mean."""
    mean = (one + other) / 2
    return 100 * abs(one - other) / mean if mean else 0.0


class Prompts:
    """Random words, none of which begin like others'."""

    def __init__(self, num_words: int, seed: int) -> None:
        self._num_words = num_words
        self._words = _WORDS.split()
        self._random = random.Random(seed)

    def next(self) -> str:
        first = f"{self._random.getrandbits(40):x}"
        return " ".join([first, *self._random.choices(self._words, k=self._num_words - 1)])


class Person:
    """Somebody who asks `model` for `max_tokens` tokens of output, no fewer, with a key."""

    def __init__(
        self, connect: Connect, key: str, model: str, prompts: Prompts, max_tokens: int
    ) -> None:
        self.answers: list[StreamedAnswer] = []
        self._connect = connect
        self._key = key
        self._prompts = prompts
        self._max_tokens = max_tokens
        self._fields: dict[str, Any] = {
            "model": model,
            "ignore_eos": True,
            "temperature": 0,
            "stream": True,
            "stream_options": {"include_usage": True},
        }

    @property
    def num_complete(self) -> int:
        """Answers that are whole."""
        return sum(answer.is_complete for answer in self.answers)

    async def flood(self, num_requests: int) -> None:
        """Keep that many in flight, until cancelled. The first outputs are shorter, each by
        another number of tokens, so that not all end together for ever. Raises Refused."""
        async with asyncio.TaskGroup() as tasks:
            for number in range(num_requests):
                first_tokens = max(1, self._max_tokens * (number + 1) // num_requests)
                tasks.create_task(self._ask_without_end(first_tokens))

    async def ask_every(self, interval_s: float, seconds: float, grace_s: float) -> None:
        """One request each `interval_s`, whether or not others are answered; then wait for
        those, for at most `grace_s`. Raises Refused."""
        begin = time.perf_counter()
        async with asyncio.TaskGroup() as tasks:
            for number in range(round(seconds / interval_s)):
                due = begin + number * interval_s
                await asyncio.sleep(max(0.0, due - time.perf_counter()))
                tasks.create_task(self._ask_within(due, begin + seconds + grace_s))

    async def _ask_within(self, due: float, deadline: float) -> None:
        answer = _Arriving(due)
        self.answers.append(answer.answer)
        try:
            async with asyncio.timeout(deadline - time.perf_counter()):
                await self._ask(answer, await self._connect(answer))
        except TimeoutError:
            raise Refused(f"no answer within {time.perf_counter() - due:.0f} s") from None

    async def _ask_without_end(self, first_tokens: int) -> None:
        connection: Connection | None = None
        max_tokens = first_tokens
        try:
            while True:
                answer = _Arriving(time.perf_counter())
                self.answers.append(answer.answer)
                if connection is None:
                    connection = await self._connect(answer)
                connection.listener = answer
                connection.ask(self._request(max_tokens))
                await answer.is_done
                max_tokens = self._max_tokens
        finally:
            if connection is not None:
                connection.close()

    async def _ask(self, answer: "_Arriving", connection: Connection) -> None:
        try:
            connection.ask(self._request(self._max_tokens))
            await answer.is_done
        finally:
            connection.close()

    def _request(self, max_tokens: int) -> bytes:
        messages = [{"role": "user", "content": self._prompts.next()}]
        more = {"messages": messages, "max_tokens": max_tokens}
        return post(CHAT, self._key, self._fields | more)


class _Arriving:
    """Listens to one answer."""

    def __init__(self, due: float) -> None:
        self.answer = StreamedAnswer(due)
        self.is_done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._tail = b""

    def piece(self, data: bytes) -> None:
        now = time.perf_counter()
        self.answer.chunks.extend([now] * len(_CONTENT.findall(data)))
        self._tail = (self._tail + data)[-_TAIL_BYTES:]

    def ended(self, status: int) -> None:
        usage = _usage(self._tail)
        if status != 200 or usage is None:
            self._fail(f"status {status}: {self._tail.decode(errors='replace')[-500:]}")
            return
        self.answer.prompt_tokens = usage["prompt_tokens"]
        self.answer.output_tokens = usage["completion_tokens"]
        self.answer.is_complete = True
        if not self.is_done.done():
            self.is_done.set_result(None)

    def lost(self) -> None:
        self._fail("the connection ended before the answer did")

    def _fail(self, message: str) -> None:
        if not self.is_done.done():
            self.is_done.set_exception(Refused(message))


def _usage(tail: bytes) -> dict[str, int] | None:
    """That of the last chunk but [DONE]."""
    for line in reversed(tail.split(b"\n")):
        if line.startswith(b"data: {"):
            usage: dict[str, int] | None = json.loads(line[6:]).get("usage")
            return usage
    return None

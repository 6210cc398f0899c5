"""Tries grammars out where they can do no harm: a process that forks one more for each.

Compiling a short grammar can take seconds and gigabytes, and nothing in the compiler can be
told to stop. So each is compiled first, with its first tokens, in a process that has a limit
of memory and of time; only one that stays within them is compiled in the engine. Reads JSON
lines: a `TokenTable`, then numbered grammars; answers each with a line, its number and a
`Verdict`. It ends when its input does, which is when the engine ends.
"""

import json
import os
import resource
import signal
import sys
from collections.abc import Mapping
from typing import NamedTuple

from carpool.engine.grammar_compiler import GrammarCompiler, TokenTable
from carpool.engine.grammar_error import GrammarError, sentence

MAX_CPU_S = 0.5
MAX_WALL_S = 15.0
"""On a machine that is busy; CPU time is what counts otherwise."""
MAX_ADDRESS_SPACE = 1536 * 2**20
"""Of the process: its libraries, the vocabulary, the compiler's stack, and the grammar."""
MAX_GROWTH = 64 * 2**20
"""Bytes by which a grammar may let a process grow to be worth its place in the engine."""
NUM_TOKENS = 16
"""So many tokens of an output are tried: grammars of too many branches fail after the first."""
_TOO_LONG = f"it takes over {MAX_CPU_S:g} s to compile; make it smaller"
_TOO_LARGE = f"it needs over {MAX_GROWTH // 2**20} MiB of memory; make it smaller"


class Verdict(NamedTuple):
    """What is wrong with a grammar, if anything is, and the bytes that it takes."""

    error: str | None
    num_bytes: int


def table_to_json(table: TokenTable) -> str:
    tokens = [token.decode("latin-1") for token in table.token_bytes]
    fields = (tokens, table.special_token_ids, table.eos_token_ids, table.bos_token_id)
    return json.dumps(fields)


def _table_from_json(text: str) -> TokenTable:
    tokens, special, eos, bos = json.loads(text)
    return TokenTable(
        tuple(token.encode("latin-1") for token in tokens), tuple(special), tuple(eos), bos
    )


class _Greedy:
    """Token ids of a text, the longest token first: as good as the model's own to find out
    what a grammar costs."""

    def __init__(self, table: TokenTable) -> None:
        self._ids: Mapping[bytes, int] = {
            token: number for number, token in enumerate(table.token_bytes) if token
        }
        self._longest = max(map(len, self._ids))

    def __call__(self, text: str) -> list[int]:
        data, start, token_ids = text.encode(), 0, []
        while start < len(data):
            for length in range(min(self._longest, len(data) - start), 0, -1):
                token_id = self._ids.get(data[start : start + length])
                if token_id is not None:
                    token_ids.append(token_id)
                    break
            start += length
        return token_ids


def _try(compiler: GrammarCompiler, table: TokenTable, grammar: str) -> None:
    """Compile, and walk through the first tokens of an output. Raises GrammarError."""
    matcher = compiler.compile(grammar)
    skipped = frozenset(table.special_token_ids) | frozenset(table.eos_token_ids)
    for _ in range(NUM_TOKENS):
        mask = int.from_bytes(matcher.compute_bitmask(), "little")
        if matcher.is_error():
            raise GrammarError(sentence(matcher.get_error()))
        for token_id in skipped:
            mask &= ~(1 << token_id)
        if not mask or matcher.is_stopped():
            return
        lowest = (mask & -mask).bit_length() - 1
        if not matcher.consume_token(lowest):
            raise GrammarError(sentence(matcher.get_error()))


def _peak_bytes() -> int:
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def _limit() -> None:
    """Whatever goes over them is ended by the system."""
    if sys.platform == "linux":  # macOS knows no such limit; there, the time bounds the memory
        resource.setrlimit(resource.RLIMIT_AS, (MAX_ADDRESS_SPACE, MAX_ADDRESS_SPACE))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    signal.setitimer(signal.ITIMER_PROF, MAX_CPU_S)
    signal.setitimer(signal.ITIMER_REAL, MAX_WALL_S)


def _in_fork(compiler: GrammarCompiler, table: TokenTable, grammar: str) -> Verdict:
    before = _peak_bytes()
    _limit()
    try:
        _try(compiler, table, grammar)
    except GrammarError as error:
        return Verdict(str(error), 0)
    except MemoryError:
        return Verdict(_TOO_LARGE, 0)
    growth = _peak_bytes() - before
    return Verdict(_TOO_LARGE if growth > MAX_GROWTH else None, growth)


def _verdict(compiler: GrammarCompiler, table: TokenTable, grammar: str) -> Verdict:
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.write(writing, json.dumps(_in_fork(compiler, table, grammar)).encode())
        finally:
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        answer = pipe.read()
    _, status = os.waitpid(child, 0)
    if answer:
        error, num_bytes = json.loads(answer)
        return Verdict(error, num_bytes)
    is_late = os.WIFSIGNALED(status) and os.WTERMSIG(status) in (signal.SIGPROF, signal.SIGALRM)
    return Verdict(_TOO_LONG if is_late else _TOO_LARGE, 0)


def main() -> None:
    os.nice(10)
    table = _table_from_json(sys.stdin.readline())
    compiler = GrammarCompiler(table, _Greedy(table))
    for line in sys.stdin:
        number, grammar = json.loads(line)
        answer = (number, *_verdict(compiler, table, grammar))
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()

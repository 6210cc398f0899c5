"""Where requests are counted as they end, a few additions each, until somebody takes the sums."""

from collections import defaultdict
from math import ceil, log

from carpool.store.usage_row import UsageRow
from carpool.watch.point import CallerSums, Point
from carpool.watch.sketch import LEAST, LOG_G, MOST, PER_LOG, ZERO

LONGEST_THINK_S = 1800.0
"""After a longer silence somebody was away, not thinking."""
MOST_REMEMBERED = 4096
"""Keys whose last answer is remembered for the think time."""
NO_MODEL = ""
"""The name under which requests are counted that reached no model."""
MOST_TOKENS = 10**9
"""Of a request; more is an engine's mistake."""

Bins = defaultdict[int, int]


class Accumulators:
    """By model. Models are those that are served and outcomes a closed set, so these do not grow
    with what clients send; keys do, up to what a point holds. `has_think`: all requests of a key
    come by here, so that its pauses can be told."""

    def __init__(self, *, has_think: bool = True) -> None:
        self._models: dict[str, _Sums] = {}
        self._refused: dict[str, int] = {}
        self._has_think = has_think
        self._ended_at: dict[str, float] = {}

    def take(self) -> dict[str, Point]:
        """What came together since it was last taken."""
        models, self._models = self._models, {}
        refused, self._refused = self._refused, {}
        points = {name: sums.point() for name, sums in models.items()}
        if refused:
            counters = {f"outcome.{word}": float(number) for word, number in refused.items()}
            points[NO_MODEL] = Point(counters)
        return points

    def refused(self, outcome: str) -> None:
        self._refused[outcome] = self._refused.get(outcome, 0) + 1

    def ended(self, model: str, row: UsageRow) -> None:
        sums = self._models.get(model)
        if sums is None:
            sums = self._models[model] = _Sums()
        sums.add(row)
        if self._has_think:
            self._think(sums.think, row)

    def _think(self, bins: Bins, row: UsageRow) -> None:
        """A key's pause between its last answer and this request."""
        ended_at, key_id = self._ended_at, row.key_id
        before = ended_at.pop(key_id, None)
        ended_at[key_id] = row.started_at + 1e-3 * row.total_ms
        if before is not None:
            if 0 < (think := row.started_at - before) < LONGEST_THINK_S:
                _see(bins, think)
        elif len(ended_at) > MOST_REMEMBERED:
            del ended_at[next(iter(ended_at))]


_SKETCHES = (
    "queue_wait",
    "prompt_tokens",
    "output_tokens",
    "duration",
    "ttft",
    "tpot",
    "think",
)


class _Sums:
    """Of one model. Plain attributes and dictionaries: every request pays for them."""

    __slots__ = (*_SKETCHES, "cached", "callers", "num_requests", "outcomes", "output", "prompt")

    def __init__(self) -> None:
        self.outcomes: defaultdict[str, int] = defaultdict(int)
        self.num_requests = self.prompt = self.cached = self.output = 0
        self.queue_wait: Bins = defaultdict(int)
        self.prompt_tokens: Bins = defaultdict(int)
        self.output_tokens: Bins = defaultdict(int)
        self.duration: Bins = defaultdict(int)
        self.ttft: Bins = defaultdict(int)
        self.tpot: Bins = defaultdict(int)
        self.think: Bins = defaultdict(int)
        self.callers = Point()

    def add(self, row: UsageRow) -> None:
        self.outcomes[row.outcome] += 1
        _see(self.queue_wait, 1e-3 * row.queue_ms)
        if row.prompt_tokens or row.output_tokens:
            self._add_tokens(row)
        if row.ttft_ms is not None and row.is_stream:
            _see(self.ttft, 1e-3 * row.ttft_ms)
        if row.tpot_ms is not None:
            _see(self.tpot, 1e-3 * row.tpot_ms)

    def _add_tokens(self, row: UsageRow) -> None:
        prompt, output, cached = row.prompt_tokens, row.output_tokens, row.cached_tokens
        if not (0 <= prompt <= MOST_TOKENS and 0 <= output <= MOST_TOKENS):
            prompt = min(max(0, prompt), MOST_TOKENS)
            output = min(max(0, output), MOST_TOKENS)
        if not 0 <= cached <= prompt:
            cached = min(max(0, cached), prompt)
        self.num_requests += 1
        self.prompt += prompt
        self.cached += cached
        self.output += output
        prompt_bin = _see(self.prompt_tokens, prompt)
        _see(self.output_tokens, output)
        _see(self.duration, 1e-3 * row.total_ms)
        caller = self.callers.callers.get(row.key_id)
        if caller is None:
            caller = self.callers.caller(row.key_id, row.person_id)
        service_s = 1e-3 * (row.total_ms - row.queue_ms)
        caller.requests += 1
        caller.prompt_tokens += prompt
        caller.cached_tokens += cached
        caller.output_tokens += output
        caller.service_s += service_s
        # A running sequence holds its prompt and, on average, half of its answer.
        caller.kv_token_s += service_s * (prompt + 0.5 * output)
        if prompt:
            caller.prompt_logs += prompt_bin * LOG_G

    def point(self) -> Point:
        counters: dict[str, float] = {
            "requests": self.num_requests,
            "prompt_tokens": self.prompt,
            "cached_tokens": self.cached,
            "output_tokens": self.output,
        }
        counters |= {f"outcome.{word}": number for word, number in self.outcomes.items()}
        sketches = {name: dict(getattr(self, name)) for name in _SKETCHES}
        found = {name: bins for name, bins in sketches.items() if bins}
        callers: dict[str, CallerSums] = self.callers.callers
        return Point(counters, sketches=found, callers=callers)


def _see(bins: Bins, value: float) -> int:
    """As `bin_of`, without a call more."""
    bin = ceil(log(value if value < MOST else MOST) * PER_LOG) if value > LEAST else ZERO
    bins[bin] += 1
    return bin

"""Where requests are counted as they end, a few additions each, until somebody takes the sums."""

from carpool.store.usage_row import UsageRow
from carpool.watch.point import Point
from carpool.watch.sketch import LOG_G, Sketch, bin_of

LONGEST_THINK_S = 1800.0
"""After a longer silence somebody was away, not thinking."""
MOST_REMEMBERED = 4096
"""Keys whose last answer is remembered for the think time."""
NO_MODEL = ""
"""The name under which requests are counted that reached no model."""
MOST_TOKENS = 10**9
"""Of a request; more is an engine's mistake."""


class Accumulators:
    """By model. Models are those that are served and outcomes a closed set, so these do not grow
    with what clients send; keys do, up to what a point holds. `has_think`: all requests of a key
    come by here, so that its pauses can be told."""

    def __init__(self, *, has_think: bool = True) -> None:
        self._points: dict[str, Point] = {}
        self._has_think = has_think
        self._ended_at: dict[str, float] = {}

    def take(self) -> dict[str, Point]:
        """What came together since it was last taken."""
        points, self._points = self._points, {}
        return points

    def refused(self, outcome: str) -> None:
        self._point(NO_MODEL).count(f"outcome.{outcome}")

    def ended(self, model: str, row: UsageRow) -> None:
        point = self._point(model)
        counters, sketches = point.counters, point.sketches
        outcome = f"outcome.{row.outcome}"
        counters[outcome] = counters.get(outcome, 0) + 1
        service_s = 1e-3 * (row.total_ms - row.queue_ms)
        _see(sketches, "queue_wait", 1e-3 * row.queue_ms)
        if row.output_tokens or row.prompt_tokens:
            prompt, output, cached = row.prompt_tokens, row.output_tokens, row.cached_tokens
            if not (0 <= prompt <= MOST_TOKENS and 0 <= output <= MOST_TOKENS):
                prompt, output = _sane(prompt), _sane(output)
            if not 0 <= cached <= prompt:
                cached = min(max(0, cached), prompt)
            counters["requests"] = counters.get("requests", 0) + 1
            counters["prompt_tokens"] = counters.get("prompt_tokens", 0) + prompt
            counters["cached_tokens"] = counters.get("cached_tokens", 0) + cached
            counters["output_tokens"] = counters.get("output_tokens", 0) + output
            prompt_bin = _see(sketches, "prompt_tokens", prompt)
            _see(sketches, "output_tokens", output)
            _see(sketches, "duration", 1e-3 * row.total_ms)
            sums = point.callers.get(row.key_id) or point.caller(row.key_id, row.person_id)
            sums.requests += 1
            sums.prompt_tokens += prompt
            sums.cached_tokens += cached
            sums.output_tokens += output
            sums.service_s += service_s
            # A running sequence holds its prompt and, on average, half of its answer.
            sums.kv_token_s += service_s * (prompt + 0.5 * output)
            sums.prompt_logs += prompt_bin * LOG_G if prompt else 0.0
        if row.is_stream and row.ttft_ms is not None:
            _see(sketches, "ttft", 1e-3 * row.ttft_ms)
        if row.tpot_ms is not None:
            _see(sketches, "tpot", 1e-3 * row.tpot_ms)
        if self._has_think:
            self._think(sketches, row)

    def _think(self, sketches: dict[str, Sketch], row: UsageRow) -> None:
        """A key's pause between its last answer and this request."""
        before = self._ended_at.pop(row.key_id, None)
        self._ended_at[row.key_id] = row.started_at + 1e-3 * row.total_ms
        if before is not None:
            if 0 < (think := row.started_at - before) < LONGEST_THINK_S:
                _see(sketches, "think", think)
        elif len(self._ended_at) > MOST_REMEMBERED:
            del self._ended_at[next(iter(self._ended_at))]

    def _point(self, model: str) -> Point:
        point = self._points.get(model)
        if point is None:
            point = self._points[model] = Point()
        return point


def _sane(num_tokens: int) -> int:
    return min(max(0, num_tokens), MOST_TOKENS)


def _see(sketches: dict[str, Sketch], name: str, value: float) -> int:
    bin = bin_of(value)
    sketch = sketches.get(name)
    if sketch is None:
        sketches[name] = {bin: 1}
    else:
        sketch[bin] = sketch.get(bin, 0) + 1
    return bin

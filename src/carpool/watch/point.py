"""What went on at one model in one span of time, in a form that adds up."""

from dataclasses import dataclass, field

from carpool.watch.sketch import Sketch, merge

MOST_CALLERS = 512
"""Keys that a point tells apart; those that come later count together."""
OTHERS = ""


@dataclass(slots=True)
class Gauge:
    """Of samples, which are not evenly spread: their sum, number and maximum."""

    sum: float = 0.0
    count: int = 0
    max: float = 0.0

    def observe(self, value: float) -> None:
        self.max = value if not self.count else max(self.max, value)
        self.sum += value
        self.count += 1

    def add(self, other: "Gauge") -> None:
        if other.count:
            self.max = other.max if not self.count else max(self.max, other.max)
            self.sum += other.sum
            self.count += other.count


@dataclass(slots=True)
class CallerSums:
    """Of the requests of one key that ended: `service_s` from the seat to the end,
    `kv_token_s` those seconds times the tokens held, `prompt_logs` the natural logarithms of the
    prompts' tokens: their mean is not carried away by one long prompt."""

    person_id: str = OTHERS
    requests: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    service_s: float = 0.0
    kv_token_s: float = 0.0
    prompt_logs: float = 0.0

    def add(self, other: "CallerSums") -> None:
        self.requests += other.requests
        self.prompt_tokens += other.prompt_tokens
        self.cached_tokens += other.cached_tokens
        self.output_tokens += other.output_tokens
        self.service_s += other.service_s
        self.kv_token_s += other.kv_token_s
        self.prompt_logs += other.prompt_logs


@dataclass(slots=True)
class Point:
    """`callers` are by key id."""

    counters: dict[str, float] = field(default_factory=dict)
    gauges: dict[str, Gauge] = field(default_factory=dict)
    sketches: dict[str, Sketch] = field(default_factory=dict)
    callers: dict[str, CallerSums] = field(default_factory=dict)

    def count(self, name: str, number: float = 1) -> None:
        self.counters[name] = self.counters.get(name, 0) + number

    def sample(self, name: str, value: float) -> None:
        gauge = self.gauges.get(name)
        if gauge is None:
            gauge = self.gauges[name] = Gauge()
        gauge.observe(value)

    def caller(self, key_id: str, person_id: str) -> CallerSums:
        """The sums to add to: those of the others where there are too many keys."""
        sums = self.callers.get(key_id)
        if sums is None:
            if len(self.callers) >= MOST_CALLERS:
                key_id = person_id = OTHERS
                if (sums := self.callers.get(OTHERS)) is not None:
                    return sums
            sums = self.callers[key_id] = CallerSums(person_id)
        return sums

    def add(self, other: "Point") -> None:
        for name, number in other.counters.items():
            self.count(name, number)
        for name, gauge in other.gauges.items():
            self.gauges.setdefault(name, Gauge()).add(gauge)
        for name, sketch in other.sketches.items():
            merge(self.sketches.setdefault(name, {}), sketch)
        for key_id, sums in other.callers.items():
            self.caller(key_id, sums.person_id).add(sums)

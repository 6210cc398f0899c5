"""What a sample says of a tail: is the share of requests beyond a limit under 1 %?

The number beyond it in n requests is binomial, whatever the times are distributed like, so
that the bounds need no assumption but independence (Conover, Practical Nonparametric
Statistics, 3.2). Requests of one queue are not quite independent: a bound says what the
sample alone allows, not more.
"""

from collections.abc import Sequence
from math import exp, inf, lgamma, log, log1p

TAIL = 0.01
"""The share of requests that may be beyond the limit: what a p99 is."""


def sure_below(num_requests: int, num_over: int, tail: float = TAIL) -> float:
    """How sure one is that less than `tail` of all requests are over: 1 less the probability
    of so few among so many, were it just `tail`."""
    return 1.0 - _at_most(num_over, num_requests, tail)


def sure_above(num_requests: int, num_over: int, tail: float = TAIL) -> float:
    """The same for more than `tail`."""
    return _at_most(num_over - 1, num_requests, tail)


def requests_needed(confidence: float, num_over: int = 0, tail: float = TAIL) -> int:
    """The fewest requests of which `num_over` may be over and one is still `confidence` sure
    that less than `tail` are."""
    low, high = num_over + 1, 1024
    while sure_below(high, num_over, tail) < confidence:
        high *= 2
    while low < high:
        middle = (low + high) // 2
        if sure_below(middle, num_over, tail) >= confidence:
            high = middle
        else:
            low = middle + 1
    return low


def quantile(values: Sequence[float], share: float) -> float:
    """Of sorted values, between the two nearest (Hyndman and Fan's definition 7); infinite
    where the upper one is. ValueError where there are none."""
    if not values:
        raise ValueError("no values to take a quantile of")
    position = share * (len(values) - 1)
    index = int(position)
    below, above = values[index], values[min(index + 1, len(values) - 1)]
    part = position - index
    if part == 0:
        return below
    return inf if above == inf else below + (above - below) * part


def _at_most(count: int, num_trials: int, share: float) -> float:
    """The binomial distribution's P(X <= count)."""
    if count < 0:
        return 0.0
    if count >= num_trials:
        return 1.0
    return min(1.0, sum(_exactly(k, num_trials, share) for k in range(count + 1)))


def _exactly(count: int, num_trials: int, share: float) -> float:
    ways = lgamma(num_trials + 1) - lgamma(count + 1) - lgamma(num_trials - count + 1)
    return exp(ways + count * log(share) + (num_trials - count) * log1p(-share))

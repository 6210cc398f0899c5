"""Prompts grow: of everybody, or of one key. Somebody has added retrieval, a longer system prompt,
a conversation that is never cut; and as many sequences as before no longer fit."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from carpool.watch.model_view import CallerLines, ModelView
from carpool.watch.severity import Severity
from carpool.watch.signal import Remedy, Signal, SignalName
from carpool.watch.signals.remedies import duration, for_capacity, sequences, tokens
from carpool.watch.statistics import change_point

Array = np.ndarray[Any, np.dtype[Any]]

WINDOWS_H = (2, 4, 8, 24)
"""Recent hours that are compared with the days before."""
BASELINE_H = 7 * 24
RATIO = 1.5
"""Of the geometric mean of recent prompts to earlier ones."""
SURE = 5.0
"""Standard errors between the two: hundreds of comparisons a day are made."""
LEAST_REQUESTS, LEAST_BEFORE, LEAST_HOURS = 15, 60, 12
LEAST_MORE = 200.0
"""Tokens a prompt has more."""


@dataclass(frozen=True, slots=True)
class _Growth:
    """Of the geometric means; `place` is the hour from which on prompts are longer."""

    before: float
    after: float
    sure: float
    place: int
    hours: int


def context_creep(view: ModelView) -> Iterable[Signal]:
    """Recent prompts (of the last 2, 4, 8 or 24 hours) are 1.5 times as long as those of the
    week before, by five standard errors and 200 tokens."""
    callers = [each for each in view.callers if each.key_id]
    if not callers:
        return
    requests, logs = _stacked(callers, "requests"), _stacked(callers, "prompt_logs")
    if _num_grown(requests, logs, view.ease) >= 2:
        found = _growth_of(requests.sum(axis=0), logs.sum(axis=0), view.ease)
        if found is not None:
            yield _of_all(view, found)
    for number in _candidates(requests, logs, view.ease):
        found = _growth_of(requests[number], logs[number], view.ease)
        if found is not None:
            yield _of_key(view, callers[number], found)


def _stacked(callers: list[CallerLines], name: str) -> Array:
    """By key and hour."""
    length = BASELINE_H + WINDOWS_H[-1]
    table: Array = np.nan_to_num(np.stack([each.columns[name][-length:] for each in callers]))
    return table


def _candidates(requests: Array, logs: Array, ease: float) -> list[int]:
    """Keys whose prompts have grown enough in some window, however sure that is."""
    total, total_logs = requests.sum(axis=1), logs.sum(axis=1)
    found = np.zeros(len(requests), bool)
    for window in WINDOWS_H:
        new, new_logs = requests[:, -window:].sum(axis=1), logs[:, -window:].sum(axis=1)
        old, old_logs = total - new, total_logs - new_logs
        ratio = new_logs / np.maximum(new, 1) - old_logs / np.maximum(old, 1)
        enough = (new >= LEAST_REQUESTS) & (old >= LEAST_BEFORE)
        found |= enough & (ratio >= np.log(RATIO) * ease)
    numbers: list[int] = np.flatnonzero(found).tolist()
    return numbers


def _growth_of(requests: Array, logs: Array, ease: float) -> _Growth | None:
    """By hours; of the shortest window that shows it."""
    for window in WINDOWS_H:
        if len(requests) > window:
            found = _compare(requests, logs, len(requests) - window, ease)
            if found is not None:
                return found
    return None


def _compare(requests: Array, logs: Array, split: int, ease: float) -> _Growth | None:
    old, new = requests[:split], requests[split:]
    if new.sum() < LEAST_REQUESTS or old.sum() < LEAST_BEFORE or (old > 0).sum() < LEAST_HOURS:
        return None
    mean = float(logs[:split].sum() / old.sum())
    recent = float(logs[split:].sum() / new.sum())
    difference, more = recent - mean, np.exp(recent) - np.exp(mean)
    if difference < np.log(RATIO) * ease or more < LEAST_MORE * ease:
        return None
    sure = difference / _error(requests, logs, split, mean)
    if sure < SURE * ease:
        return None
    hourly = np.where(requests > 0, logs / np.maximum(requests, 1) - mean, np.nan)
    recently = max(0, len(hourly) - 48)
    place = recently + change_point(hourly[recently:], difference / 2)
    return _Growth(float(np.exp(mean)), float(np.exp(recent)), sure, place, len(requests))


def _error(requests: Array, logs: Array, split: int, mean: float) -> float:
    """The standard error of the difference. A single prompt's spread is estimated by how much
    hours differ beyond what their numbers of requests explain: a few people's long days come in
    as a spread between hours that more requests do not make smaller."""
    has = requests[:split] > 0
    counts = requests[:split][has]
    deviations = logs[:split][has] / counts - mean
    scaled = deviations**2 * counts
    within = max(0.05, float(np.median(scaled)) / 0.455, float(np.mean(scaled)))
    between = max(0.0, float(np.mean(deviations**2)) - within * float(np.mean(1 / counts)))
    hours = max(1, int((requests[split:] > 0).sum()))
    number = requests[split:].sum()
    return float(np.sqrt(within / number + between / hours + within / counts.sum()))


def _of_key(view: ModelView, caller: CallerLines, found: _Growth) -> Signal:
    since = view.hours.start(view.hours.length - found.hours + found.place)
    before, after = _contexts(view, caller, found)
    name = view.name_of(caller.person_id)
    cost, fit = _cost(view, before, after)
    return Signal(
        name=SignalName.CONTEXT_CREEP,
        severity=Severity.WARNING,
        model=view.model,
        since=since,
        value=found.after / found.before,
        threshold=RATIO,
        subject=caller.key_id,
        person_id=caller.person_id,
        sentence=(
            f"Prompts of a key of {name} have grown from about {tokens(found.before)} to "
            f"{tokens(found.after)} tokens in the last {duration(max(3600.0, view.now - since))}"
            f"{cost}"
        ),
        figures=_figures(found, before, after) | fit,
        remedies=_remedies(view, before, after),
    )


def _of_all(view: ModelView, found: _Growth) -> Signal:
    """Of everybody's prompts together."""
    since = view.hours.start(view.hours.length - found.hours + found.place)
    before = _context(view, slice(None, -24))
    after = _context(view, slice(-_hours_since(found), None))
    cost, fit = _cost(view, before, after)
    return Signal(
        name=SignalName.CONTEXT_CREEP,
        severity=Severity.WARNING,
        model=view.model,
        since=since,
        value=found.after / found.before,
        threshold=RATIO,
        sentence=(
            f"Prompts to {view.model} have grown from about {tokens(found.before)} to "
            f"{tokens(found.after)} tokens in the last {duration(max(3600.0, view.now - since))}, "
            f"of several keys{cost}"
        ),
        figures=_figures(found, before, after) | fit,
        remedies=_remedies(view, before, after),
    )


def _figures(found: _Growth, before: float, after: float) -> dict[str, float]:
    return {
        "prompt_tokens_before": found.before,
        "prompt_tokens_now": found.after,
        "context_tokens_before": before,
        "context_tokens_now": after,
    }


def _hours_since(found: _Growth) -> int:
    return max(1, found.hours - found.place)


def _num_grown(requests: Array, logs: Array, ease: float) -> int:
    """Keys of which prompts have grown, by a little more than chance: who asks more today than
    others does not make prompts longer."""
    new, old = requests[:, -8:].sum(axis=1), requests[:, :-8].sum(axis=1)
    has = (old >= LEAST_BEFORE / 2) & (new >= 5)
    means = logs[:, -8:].sum(axis=1) / np.maximum(new, 1)
    ratio = means - logs[:, :-8].sum(axis=1) / np.maximum(old, 1)
    return int((has & (ratio >= np.log(1.25) * ease)).sum())


def _contexts(view: ModelView, caller: CallerLines, found: _Growth) -> tuple[float, float]:
    """Tokens of a mean sequence of everybody: as it would be without this key's growth, and as
    it is."""
    hours = min(24, _hours_since(found))
    after = _context(view, slice(-hours, None))
    requests = np.nansum(view.hours["requests"][-hours:])
    own = np.nansum(caller.columns["requests"][-hours:])
    prompts = np.nansum(caller.columns["prompt_tokens"][-hours:])
    if requests <= 0 or own <= 0:
        return after, after
    grown = prompts * (1 - found.before / found.after)
    return max(1.0, after - float(grown / requests)), after


def _context(view: ModelView, hours: slice) -> float:
    requests = np.nansum(view.hours["requests"][hours])
    if requests <= 0:
        return 0.0
    prompt = np.nansum(view.hours["prompt_tokens.sum"][hours])
    output = np.nansum(view.hours["output_tokens.sum"][hours])
    return float((prompt + 0.5 * output) / requests)


def _remedies(view: ModelView, before: float, after: float) -> tuple[Remedy, ...]:
    """A cap is enough for as long as nothing is lost."""
    if view.plan is not None and view.plan.sequences(after) >= view.plan.sequences(before):
        sentence = (
            "If it is not meant, cap it before it costs seats: carpool people limit NAME "
            "--max-prompt-tokens N."
        )
        return (Remedy("cap_context", sentence),)
    return for_capacity(view, after, before)


def _cost(view: ModelView, before: float, after: float) -> tuple[str, dict[str, float]]:
    """The end of the sentence, and its figures."""
    if view.plan is None or not (0 < before < after):
        return ".", {}
    fit, now = view.plan.sequences(before), view.plan.sequences(after)
    figures: dict[str, float] = {"sequences_before": fit, "sequences_now": now}
    if now >= fit:
        return f". By the plan, {sequences(now)} still fit.", figures
    return f". By the plan, {sequences(now)} fit now, where {fit} did.", figures

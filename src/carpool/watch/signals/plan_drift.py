"""People are not what the plan took them to be."""

from collections.abc import Iterable, Iterator
from typing import NamedTuple

import numpy as np

from carpool.watch.model_view import ModelView
from carpool.watch.severity import Severity
from carpool.watch.signal import Remedy, Signal, SignalName
from carpool.watch.signals.remedies import mean_context, sequences, tokens
from carpool.watch.statistics import known

LEAST_REQUESTS = 300
LEAST_HOURS = 20
"""Of the last day, in which something was recorded."""
THINK, CONTEXT, CACHED, PEOPLE = 1.6, 1.3, 0.2, 1.3
"""Ratios of what was planned to what is (of contexts and people the other way round), and of the
share of prompts that the cache has, the difference."""


class _Drift(NamedTuple):
    what: str
    ratio: float
    threshold: float


def plan_drift(view: ModelView) -> Iterable[Signal]:
    """Over the last day people think less, hold longer contexts, share less of their prompts, or
    are more at once, than the plan says, by a third or more."""
    if view.plan is None:
        return
    requests = view.hours.last("requests", 86_400)
    if np.nansum(requests) < LEAST_REQUESTS or len(known(requests)) < LEAST_HOURS:
        return
    drifts = [each for each in _drifts(view) if each.ratio >= 1 + (each.threshold - 1) * view.ease]
    if not drifts:
        return
    worst = max(drifts, key=lambda each: each.ratio / each.threshold)
    context, fit = mean_context(view), ""
    if context > 0:
        fit = f" With contexts as they are, {sequences(view.plan.sequences(context))} fit."
    yield Signal(
        name=SignalName.PLAN_DRIFT,
        severity=Severity.INFO,
        model=view.model,
        since=view.now - 86_400,
        value=worst.ratio,
        threshold=worst.threshold,
        sentence=(
            f"The plan of {view.model} took people to be otherwise than they were over the last "
            f"day: {'; '.join(each.what for each in drifts)}.{fit}"
        ),
        figures={"context_tokens": context, "drifts": len(drifts)},
        remedies=(
            Remedy(
                "replan",
                "Plan again with your own usage: carpool usage --csv > usage.csv; "
                "carpool plan --usage usage.csv.",
            ),
        ),
    )


def _drifts(view: ModelView) -> Iterator[_Drift]:
    """Those that can be told."""
    if view.plan is None:
        return
    plan, hours = view.plan.assumptions, view.hours
    thinks, counts = hours.last("think.p50", 86_400), hours.last("think.count", 86_400)
    there = ~np.isnan(thinks) & (np.nan_to_num(counts) > 0)
    if plan.think_seconds and there.any():
        think = float(np.average(thinks[there], weights=counts[there]))
        what = f"{think:.0f} s between requests, not {plan.think_seconds:.0f}"
        yield _Drift(what, plan.think_seconds / max(1.0, think), THINK)
    if plan.context_tokens and (context := mean_context(view)):
        what = f"contexts of {tokens(context)} tokens, not {tokens(plan.context_tokens)}"
        yield _Drift(what, context / plan.context_tokens, CONTEXT)
    prompt = np.nansum(hours.last("prompt_tokens.sum", 86_400))
    if plan.cached_share and prompt > 0:
        cached = float(np.nansum(hours.last("cached_tokens.sum", 86_400)) / prompt)
        what = f"{100 * cached:.0f} % of prompts in the cache, not {100 * plan.cached_share:.0f} %"
        yield _Drift(what, 1 + plan.cached_share - cached, 1 + CACHED)
    people = known(hours.last("people_active.max", 86_400))
    if plan.num_people and len(people):
        # Of the busiest hours, not of one odd moment.
        most = float(np.quantile(people, 0.9))
        what = f"{most:.0f} people at once, not {plan.num_people}"
        yield _Drift(what, most / plan.num_people, PEOPLE)

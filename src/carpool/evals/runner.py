"""Runs an eval set against an endpoint."""

import asyncio
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from carpool.evals.check import judge
from carpool.evals.endpoint import Endpoint, EndpointError, Fault
from carpool.evals.eval_run import Result, RunInfo, RunWriter
from carpool.evals.eval_set import EvalCase, EvalSet
from carpool.evals.template import read_template

_FINAL = (Fault.WANTS_KEY, Fault.NO_MODEL)
_MAY_BE_DEAD = (Fault.DOWN, Fault.CUT)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOptions:
    """`repeats` for cases that do not say their own; at most `concurrency` requests at once.
    `temperature`, if given, goes before the set's; `sampling` stands behind it."""

    repeats: int = 1
    concurrency: int = 4
    temperature: float | None = None
    sampling: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _Job:
    case: EvalCase
    is_stream: bool
    repeat: int


class EndpointDied(EndpointError):
    """It went away in the middle of a run; what was measured until then is kept."""


async def run_evals(
    eval_set: EvalSet,
    endpoint: Endpoint,
    options: RunOptions,
    writer: RunWriter,
    on_result: Callable[[Result], None] = lambda result: None,
) -> None:
    """Every result is in the `writer` as soon as it is there, and so is left when this raises or
    is cancelled.

    Raises EndpointError if the endpoint cannot be used, EndpointDied if it goes away.
    """
    await endpoint.settle()
    jobs = list(_jobs(eval_set, options))
    writer.begin(
        RunInfo(
            set_name=eval_set.name,
            set_sha256=eval_set.sha256,
            url=str(endpoint),
            model=endpoint.model or "",
            repeats=options.repeats,
            temperature=options.temperature,
            started_at=time.time(),
            num_planned=len(jobs),
        )
    )
    writer.found_template(await read_template(endpoint))
    left = iter(jobs)

    async def work() -> None:
        for job in left:
            result, error = await _result(endpoint, job, options)
            writer.add(result)
            on_result(result)
            if error is not None:
                await _check_alive(endpoint, error)

    try:
        async with asyncio.TaskGroup() as group:
            for _ in range(min(options.concurrency, len(jobs))):
                group.create_task(work())
    except* EndpointError as errors:
        raise _first(errors) from None
    writer.end()


def num_requests(eval_set: EvalSet, options: RunOptions) -> int:
    """How many requests a run makes."""
    return sum(len(case.streams) * (case.repeats or options.repeats) for case in eval_set.cases)


def _jobs(eval_set: EvalSet, options: RunOptions) -> Iterator[_Job]:
    """All cases once, then again: what changes while it runs touches all cases alike."""
    most = max(case.repeats or options.repeats for case in eval_set.cases)
    for repeat in range(most):
        for case in eval_set.cases:
            if repeat < (case.repeats or options.repeats):
                for is_stream in case.streams:
                    yield _Job(case, is_stream, repeat)


async def _result(
    endpoint: Endpoint, job: _Job, options: RunOptions
) -> tuple[Result, EndpointError | None]:
    case = job.case
    fields: dict[str, Any] = {
        "case_id": case.case_id,
        "tags": case.tags,
        "is_stream": job.is_stream,
        "repeat": job.repeat,
        "has_tools": bool(case.tools),
    }
    try:
        answer = await endpoint.ask(_body(job, options))
    except EndpointError as error:
        return Result(**fields, error=str(error)), error
    verdicts = [await judge(check, answer, case.question) for check in case.checks]
    return Result(**fields, answer=answer, verdicts=tuple(verdicts)), None


def _body(job: _Job, options: RunOptions) -> dict[str, Any]:
    body = {**options.sampling, **job.case.body(job.is_stream)}
    if options.temperature is not None:
        body["temperature"] = options.temperature
    if isinstance(body.get("seed"), int):
        body["seed"] += job.repeat  # the same seed again would be the same answer again
    return body


async def _check_alive(endpoint: Endpoint, error: EndpointError) -> None:
    """Raises EndpointError where going on makes no sense."""
    if error.fault in _FINAL:
        raise error
    if error.fault not in _MAY_BE_DEAD:
        return
    try:
        await endpoint.settle()
    except EndpointError as still:
        raise EndpointDied(still.fault, f"{endpoint} went away in the middle: {still}") from None


def _first(errors: "BaseExceptionGroup[EndpointError]") -> EndpointError:
    for error in errors.exceptions:
        return _first(error) if isinstance(error, BaseExceptionGroup) else error
    raise RuntimeError("a group of no errors")

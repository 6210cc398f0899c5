"""A verification from the engine's start to the report."""

import asyncio
import signal
import sys
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from importlib.metadata import version
from math import isfinite
from pathlib import Path
from statistics import fmean

import typer

from carpool.backends.backend import BackendKind
from carpool.bench.capacity_search import SearchConfig
from carpool.bench.dialect import get_acquainted
from carpool.bench.engine_under_test import EngineUnderTest, attached, is_loopback, started
from carpool.bench.memory_watch import MemoryWatch
from carpool.bench.plan_check import PlanCheck
from carpool.bench.prediction import Prediction, predicted_by_calibration, predicted_by_plan
from carpool.bench.progress import Progress
from carpool.bench.prompts import Lengths, MadeUpPrompts
from carpool.bench.step_fit import FitError, StepFit, fit_steps
from carpool.bench.tail import TAIL, quantile
from carpool.bench.verification import (
    DrivenLevel,
    Verification,
    Verified,
    VerifyConfig,
    first_tokens,
)
from carpool.cli.calibrations import device_label, find_calibration, flags_label
from carpool.cli.prepare import prepare
from carpool.cli.verify_plan import CPU_SCALE, Planned, find_device, plan_for, scaled
from carpool.gateway.model_config import BackendConfig, ModelConfig
from carpool.hardware.device import Device
from carpool.planning.calibration import Calibration, CalibrationKey
from carpool.planning.profile import Profile
from carpool.scheduling.capacity import Provenance

DEFAULT_AT = 8
"""Requests at once to begin with, where there is no plan."""
STOP_S = 15.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What was said on the command line."""

    target: str
    backend: str
    engine_args: tuple[str, ...]
    model: str | None
    plan_for: str | None
    key: str | None
    gpu: str | None
    gpus: int
    people: int | None
    at: int | None
    profile: Profile
    scale: float | None
    prompt: int | None
    output: int | None
    spread: float
    tolerance_s: float
    confidence: float
    precision: float
    budget_s: float
    max_concurrency: int
    use_calibration: bool
    database: str | None

    @property
    def is_attached(self) -> bool:
        return "://" in self.target


async def verify_engine(options: Options) -> PlanCheck | None:
    """None if it was stopped before anything was measured."""
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGINT, stop.set)
    with tempfile.TemporaryDirectory(prefix="carpool-") as folder:
        work = asyncio.ensure_future(_with_engine(options, Path(folder), stop))
        stopping = asyncio.ensure_future(stop.wait())
        await asyncio.wait((work, stopping), return_when=asyncio.FIRST_COMPLETED)
        if not work.done():
            # What is being measured ends by itself and says what it has; loading does not.
            await asyncio.wait((work,), timeout=STOP_S)
        if not work.done():
            work.cancel()
            await asyncio.gather(work, return_exceptions=True)
            return None
        return work.result()


async def _with_engine(options: Options, folder: Path, stop: asyncio.Event) -> PlanCheck:
    async with _engine(options, folder) as engine:
        return await _measured(options, engine, stop)


@asynccontextmanager
async def _engine(options: Options, folder: Path) -> AsyncIterator[EngineUnderTest]:

    if options.is_attached:
        made = attached(options.target, model=options.model, api_key=options.key)
    else:
        if options.backend == "embedded":
            _pull(options.target)
        made = started(
            options.backend, options.target, folder, options.engine_args, _own_version(options)
        )
    async with made as engine:
        yield engine


def _pull(model: str) -> None:

    prepare([ModelConfig(name=model, backends=(BackendConfig(model=model),))])


def _own_version(options: Options) -> str:
    return f"OpenVINO {version('openvino')}" if options.backend == "embedded" else ""


async def _measured(options: Options, engine: EngineUnderTest, stop: asyncio.Event) -> PlanCheck:

    is_here = engine.is_started_here or is_loopback(engine.target.address)
    device = find_device(options.gpu, options.gpus, is_here)
    is_cpu = device is not None and device[0].is_cpu
    scale = options.scale or (CPU_SCALE if is_cpu else 1.0)
    lengths = scaled(options.profile, scale, options.prompt, options.output)
    key = _key(options, engine, device)
    before = _before(options, key) if options.use_calibration else None
    planned = plan_for(
        engine.kind.value,
        options.plan_for or (engine.target.model if options.is_attached else options.target),
        options.engine_args,
        lengths,
        device,
        people=options.people,
        calibration=before,
        reported=_reported(engine) if options.is_attached else {},
    )
    plan = planned.plan
    is_again = before is not None and _is_like(before, lengths, options.tolerance_s)
    number = options.at or (plan.planned.num_seqs if plan and plan.planned else DEFAULT_AT)
    if before is not None and is_again and before.planned and not (options.at or options.people):
        # The same plan as the last time, so that the two can be compared.
        number = before.planned
    config = VerifyConfig(
        search=SearchConfig(
            planned=min(number, options.max_concurrency),
            tolerance_s=options.tolerance_s,
            confidence=options.confidence,
            precision=options.precision,
            max_concurrency=options.max_concurrency,
            hint=before.max_num_seqs or None if before is not None and is_again else None,
        ),
        prompt_tokens=lengths.prompt_tokens,
        output_tokens=lengths.output_tokens,
        budget_s=options.budget_s,
    )
    known = await get_acquainted(engine.target)
    prompts = MadeUpPrompts(
        lengths=(
            Lengths(config.prompt_tokens, options.spread),
            Lengths(config.output_tokens, options.spread),
        ),
        scale=known.scale,
    )
    watch = MemoryWatch(engine.pid)
    verified = await Verification(
        known.target, prompts, config,
        watch=watch, check_alive=engine.check_alive, on_level=_say_level,
        on_progress=_say_progress if sys.stderr.isatty() else None,
    ).run(stop)  # fmt: skip
    memory = verified.memory
    overhead = None if memory is None else await engine.overhead_bytes(memory.last_bytes)
    check = PlanCheck(
        verified=verified,
        engine=engine.kind.value,
        version=engine.version,
        device=key.device,
        capacity=engine.capacity,
        plan=plan,
        no_plan=planned.why,
        predictions=_predictions(planned, before, engine, config),
        fit=_fit(verified),
        before=before,
        calibration=None,
        overhead_bytes=overhead,
    )
    return replace(check, calibration=_calibration(check, key))


def _is_like(before: Calibration, lengths: Profile, tolerance_s: float) -> bool:
    """Whether it was measured with such requests, and for the same tolerance."""
    is_like = before.is_like(lengths.prompt_tokens, lengths.output_tokens)
    return is_like and before.tolerance_s == tolerance_s


def _key(
    options: Options, engine: EngineUnderTest, device: tuple[Device, int] | None
) -> CalibrationKey:
    return CalibrationKey(
        engine=engine.kind.value,
        version=engine.version,
        model=engine.target.model if options.is_attached else options.target,
        device="unknown" if device is None else device_label(*device),
        flags=flags_label(options.engine_args),
        address=str(engine.target.address) if options.is_attached else "",
    )


def _before(options: Options, key: CalibrationKey) -> Calibration | None:
    return find_calibration(
        options.database,
        engine=key.engine,
        model=key.model,
        device=key.device,
        flags=key.flags,
        address=key.address,
    )


def _reported(engine: EngineUnderTest) -> dict[str, object]:
    """Settings that an engine which was started by others told."""
    capacity = engine.capacity
    if capacity.provenance is Provenance.PREDICTED:
        return {}
    fields: dict[str, object] = {
        "max_num_seqs": capacity.max_num_seqs,
        "max_model_len": capacity.max_model_len,
    }
    if engine.kind is BackendKind.LLAMA_CPP:
        fields["kv_tokens"] = capacity.kv_tokens
    return fields


def _predictions(
    planned: Planned, before: Calibration | None, engine: EngineUnderTest, config: VerifyConfig
) -> tuple[Prediction | None, Prediction | None]:
    """At the planned concurrency and at double: as measured before where the requests were
    alike, else by the plan."""

    def predict(number: int) -> Prediction | None:
        prompt, output = config.prompt_tokens, config.output_tokens
        if before is not None and before.is_like(prompt, output):
            found = predicted_by_calibration(before, number, engine.capacity.max_num_seqs)
            if found is not None:
                return found
        if planned.plan is None or planned.plan.speed is None:
            return None
        seats = engine.capacity.max_num_seqs
        return predicted_by_plan(planned.plan.speed, number, seats, prompt, output)

    number = config.search.planned
    return predict(number), predict(2 * number)


def _fit(verified: Verified) -> StepFit | None:
    config = verified.config
    prompt = verified.mean_prompt_tokens or config.prompt_tokens
    try:
        return fit_steps(verified.measured, prompt, config.output_tokens)
    except FitError:
        return None


def _calibration(check: PlanCheck, key: CalibrationKey) -> Calibration | None:
    """None where too little was measured to be of use to anybody."""
    verified, fit, found = check.verified, check.fit, check.verified.found
    if fit is None or len(verified.measured) < 2:
        return None
    return Calibration(
        key=key,
        measured_at=verified.started_at,
        step_fixed_s=fit.step_fixed_s,
        step_per_seq_s=fit.step_per_seq_s,
        prefill_tokens_per_s=fit.prefill_tokens_per_s,
        overhead_bytes=check.overhead_bytes,
        kv_tokens=None
        if check.capacity.provenance is Provenance.PREDICTED
        else check.capacity.kv_tokens,
        max_num_seqs=found.max_num_seqs,
        outcome=found.outcome.value,
        confidence=found.confidence,
        tolerance_s=verified.config.search.tolerance_s,
        prompt_tokens=verified.config.prompt_tokens,
        output_tokens=verified.config.output_tokens,
        levels=verified.measured,
        planned=verified.config.search.planned,
    )


def _say_level(level: DrivenLevel) -> None:
    """A line on stderr for each level, also in a log: it takes minutes."""
    result, ttfts = level.result, sorted(first_tokens(level.result))
    come = [each for each in ttfts if isfinite(each)]
    name = "alone" if level.role == "alone" else f"{level.concurrency} at once"
    p99 = quantile(ttfts, 1 - TAIL)
    ttft = f"{fmean(come):.2f} s, p99 {p99:.2f} s" if come else "-"
    failed = f", {result.num_failed} failed" if result.num_failed else ""
    verdict = "" if level.role == "alone" else f": {level.verdict.value}"
    typer.echo(
        f"{name}: {len(ttfts)} requests{failed}, TTFT {ttft}, "
        f"{result.output_tokens_per_s:,.0f} tokens/s{verdict}",
        err=True,
    )


def _say_progress(progress: Progress) -> None:
    """Over itself, on a terminal."""
    what = "warming up" if progress.is_warm_up else f"{progress.num_done} done"
    typer.echo(f"\r{progress.name}: {progress.elapsed_s:.0f} s, {what} ", err=True, nl=False)

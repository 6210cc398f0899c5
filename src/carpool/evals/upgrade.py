"""An upgrade from one version of an engine to another, or back: the new one is started beside
the old, both are tried alike, and the gateway goes over only if the gate lets it."""

import os
import shutil
from dataclasses import dataclass, replace
from typing import Protocol

from carpool.errors import CarpoolError
from carpool.evals.compare import ALPHA, Comparison, compare
from carpool.evals.endpoint import Endpoint
from carpool.evals.eval_run import EvalRun
from carpool.evals.eval_set import EvalSet
from carpool.evals.gateway_admin import Engine, Engines, GatewayAdmin
from carpool.evals.short_bench import BenchFigures, BenchOptions, short_bench
from carpool.evals.template import read_version
from carpool.evals.upgrade_gate import GateOptions, Judgement, judge_upgrade
from carpool.gateway.lock_file import LockFile, Pin
from carpool.gateway.model_config import BackendConfig, ModelConfig
from carpool.models.cache import ModelCache, default_home
from carpool.models.fingerprint import model_sha256

START_TIMEOUT_S = 1800.0
_VERSION = "{version}"


class UpgradeError(CarpoolError):
    """An upgrade that cannot be begun."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """What is to be otherwise than now; None is as it is. `program` may have {version} in it."""

    version: str | None = None
    engine: str | None = None
    program: tuple[str, ...] | None = None
    model: str | None = None
    args: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """What both are tried with; `bench` None: no load."""

    eval_sets: tuple[EvalSet, ...]
    bench: BenchOptions | None
    gate: GateOptions
    alpha: float = ALPHA
    start_timeout_s: float = START_TIMEOUT_S


@dataclass(frozen=True, slots=True)
class Outcome:
    comparisons: tuple[Comparison, ...]
    old: BenchFigures | None
    new: BenchFigures | None
    judgement: Judgement


class Teller(Protocol):
    """Who is told what goes on, and runs an eval set so that its answers are kept."""

    def say(self, sentence: str) -> None: ...

    async def run(self, eval_set: EvalSet, endpoint: Endpoint, name: str) -> EvalRun: ...


async def find_model(admin: GatewayAdmin, model: str | None) -> Engines:
    """The engines of `model`, or of the only one. Raises GatewayAdminError, UpgradeError."""
    found = await admin.engines()
    names = sorted({engine.model for engine in found.engines})
    if model is None and len(names) != 1:
        raise UpgradeError(f"say which model; the gateway has {', '.join(names)}")
    if model is not None and model not in names:
        raise UpgradeError(f"the gateway has no model {model!r:.100}; it has {', '.join(names)}")
    wanted = await admin.engines(model or names[0])
    if wanted.lock is None:
        raise UpgradeError(
            "this gateway cannot change engines while it serves: several workers share them; "
            "restart it on the new version instead"
        )
    if not wanted.lock.parent.is_dir():
        raise UpgradeError(
            f"the gateway's lock file {wanted.lock} is not on this machine; run carpool upgrade "
            "where the gateway runs"
        )
    return wanted


def check_idle(engines: Engines) -> None:
    """Raises UpgradeError while another upgrade is under way."""
    for engine in engines.engines:
        if engine.role != "serving":
            raise UpgradeError(
                f"engine {engine.engine_id} of {engine.model} is {engine.role}: another upgrade is "
                "under way, or was left behind; `carpool upgrade --abandon` ends it"
            )


def candidate_of(engine: Engine, change: Change) -> Pin:
    """What is to take the place of `engine`. Raises UpgradeError, ModelConfigError."""
    if engine.current is None:
        raise UpgradeError(f"engine {engine.engine_id} does not serve")
    now = engine.current.backend
    is_other_kind = change.engine is not None and change.engine != now.engine
    made = replace(
        BackendConfig(engine=change.engine or now.engine, model=now.model, args=now.args)
        if is_other_kind
        else now,
        version=change.version or now.version,
        program=now.program if change.program is None else change.program,
        model=change.model or now.model,
        args=now.args if change.args is None else change.args,
    )
    if is_other_kind and change.args is None:
        made = replace(made, args=())
    if is_other_kind and change.program is None:
        made = replace(made, program=())
    if "://" not in made.engine:
        _check_program(made, is_new=made.version == now.version or change.program is not None)
    if made == now:
        raise UpgradeError(f"{engine.model} runs just this already; nothing to upgrade")
    cache = ModelCache(default_home(os.environ))
    return Pin(backend=made, model_sha256=model_sha256(made.model or engine.model, cache))


def _check_program(made: BackendConfig, *, is_new: bool) -> None:
    """`is_new`: nobody expects the words that are there already to start another version."""
    if not is_new and not any(_VERSION in word for word in made.program):
        raise UpgradeError(
            "the command that starts the engine does not depend on the version; give one, like "
            f"--command '/opt/{made.engine}-{_VERSION}/bin/{made.engine}'"
        )
    if made.program:
        program = made.program[0].replace(_VERSION, made.version or "")
        if shutil.which(program) is None:
            raise UpgradeError(f"there is no program {program}; install that version first")


async def stage(
    admin: GatewayAdmin, lock: LockFile, old: Engine, candidate: Pin, within_s: float
) -> Engine:
    """The new engine beside the old one, once it is ready; it is ended again if it never is.

    Raises GatewayAdminError, LockError.
    """
    lock.set_candidate(_configured(old), candidate)
    try:
        new = await admin.start(old.model)
    except BaseException:
        lock.set_candidate(_configured(old), None)
        raise
    try:
        new = await admin.wait_until_ready(new.engine_id, within_s)
        version = await _version_of(admin, new)
    except BaseException:
        await give_up(admin, lock, new)
        raise
    lock.set_candidate(_configured(old), replace(candidate, engine_version=version))
    return new


async def give_up(admin: GatewayAdmin, lock: LockFile, new: Engine) -> None:
    """End an engine that has not taken over, and forget it."""
    await admin.withdraw(new.engine_id)
    lock.set_candidate(_configured(new), None)


async def abandon(admin: GatewayAdmin, lock: LockFile, engines: Engines) -> list[Engine]:
    """End what an upgrade left behind: those that were ended."""
    left = [engine for engine in engines.engines if engine.role == "standby"]
    for engine in left:
        await give_up(admin, lock, engine)
    return left


async def go_over(admin: GatewayAdmin, new: Engine, old: Engine) -> None:
    """From the old to the new engine; returns once the old one has finished what it had."""
    await admin.promote(new.engine_id, old.engine_id)
    await admin.wait_until_gone(old.engine_id)


def _configured(engine: Engine) -> ModelConfig:
    """All that the lock needs to know of a model's configuration."""
    return ModelConfig(name=engine.model, backends=engine.configured)


async def _version_of(admin: GatewayAdmin, engine: Engine) -> str | None:
    endpoint = Endpoint(admin.engine_url(engine.engine_id), api_key=admin.key)
    try:
        return await read_version(endpoint)
    finally:
        endpoint.close()


async def try_both(
    admin: GatewayAdmin, old: Engine, new: Engine, trial: Trial, teller: Teller
) -> Outcome:
    """Old and new alike, at the engine itself, past the gateway's queue.

    Raises EndpointError, BenchError, RunFileError.
    """
    comparisons = []
    for eval_set in trial.eval_sets:
        runs = []
        for name, engine in (("old", old), ("new", new)):
            endpoint = Endpoint(admin.engine_url(engine.engine_id), api_key=admin.key)
            try:
                runs.append(await teller.run(eval_set, endpoint, name))
            finally:
                endpoint.close()
        comparisons.append(compare(runs[0], runs[1], trial.alpha))
    figures: list[BenchFigures | None] = [None, None]
    if trial.bench is not None:
        for index, engine in enumerate((old, new)):
            teller.say(
                f"{trial.bench.streams} streams for {trial.bench.seconds:g} s at {engine.name}"
            )
            url = admin.engine_url(engine.engine_id)
            figures[index] = await short_bench(url, None, admin.key, trial.bench)
    judgement = judge_upgrade(comparisons, figures[0], figures[1], trial.gate)
    return Outcome(tuple(comparisons), figures[0], figures[1], judgement)

"""`carpool upgrade`: from one version of an engine to another, past a gate, and back."""

import asyncio
import json
import shlex
import sys
from collections.abc import Coroutine
from contextlib import closing
from typing import TYPE_CHECKING, Annotated, Any

import typer

from carpool.cli.admin_options import ADMIN_URL, AdminKeyFile, AdminUrl, admin_key_from
from carpool.cli.eval import NOT_PASSED, ask_all, print_comparison, read_set, run_writer
from carpool.errors import CarpoolError

if TYPE_CHECKING:
    from carpool.evals.endpoint import Endpoint
    from carpool.evals.eval_run import EvalRun
    from carpool.evals.eval_set import EvalSet
    from carpool.evals.gateway_admin import Engine, Engines, GatewayAdmin
    from carpool.evals.runner import RunOptions
    from carpool.evals.short_bench import BenchFigures
    from carpool.evals.upgrade import Change, Outcome, Trial
    from carpool.gateway.lock_file import LockFile, Pin

EXIT_CODES = (
    "Exit codes: 0 the gateway has gone over, 3 the gate stopped it (the old version serves on), "
    "2 something to mend (one line says what), 130 Ctrl-C (the old version serves on), 1 a bug."
)


class UpgradeUsageError(CarpoolError):
    """Options that do not go together."""


def upgrade(
    model: Annotated[
        str | None, typer.Argument(help="Which model of the gateway.", show_default="the only one")
    ] = None,
    to: Annotated[
        str | None, typer.Option("--to", metavar="VERSION", help="The version to go to.")
    ] = None,
    backend: Annotated[
        str | None,
        typer.Option(
            help="embedded, vllm, sglang, llama.cpp or ollama; or the URL of an engine that runs.",
            show_default="as now",
        ),
    ] = None,
    command: Annotated[
        str | None,
        typer.Option(
            metavar="WORDS",
            help="What calls the engine, with {version} in it, like /opt/vllm-{version}/bin/vllm; "
            "its arguments are added.",
            show_default="as now",
        ),
    ] = None,
    backend_model: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="What it is to load.", show_default="as now"),
    ] = None,
    engine_args: Annotated[
        str | None,
        typer.Option(metavar="WORDS", help="Its other arguments.", show_default="as now"),
    ] = None,
    back: Annotated[
        bool, typer.Option("--back", help="Go back to the version before, without a trial.")
    ] = False,
    abandon: Annotated[
        bool, typer.Option("--abandon", help="End an engine that a broken upgrade left behind.")
    ] = False,
    url: AdminUrl = ADMIN_URL,
    admin_key_file: AdminKeyFile = None,
    sets: Annotated[
        list[str] | None,
        typer.Option(
            "--set", metavar="SET", help="Eval set; can be repeated.", show_default="smoke"
        ),
    ] = None,
    repeats: Annotated[int, typer.Option(min=1, max=1000, help="How often a case is asked.")] = 5,
    concurrency: Annotated[int, typer.Option(min=1, max=512, help="Requests at once.")] = 4,
    allow_hooks: Annotated[
        bool, typer.Option("--allow-hooks", help="Run the Python files that the sets name.")
    ] = False,
    no_bench: Annotated[bool, typer.Option("--no-bench", help="Leave the short load out.")] = False,
    bench_seconds: Annotated[
        float, typer.Option(min=1, max=3600, help="How long the load takes, for each.")
    ] = 15.0,
    bench_streams: Annotated[int, typer.Option(min=1, max=512, help="Streams at once.")] = 4,
    max_slowdown: Annotated[
        float, typer.Option(min=1.0, help="How many times slower the new version may be.")
    ] = 1.25,
    start_timeout: Annotated[
        float, typer.Option(min=1, help="Seconds that the new engine may take to be ready.")
    ] = 1800.0,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Start another version beside the one that serves, try both, and go over if the gate lets
    it: no request is lost, and the gateway's lock file keeps it."""
    if sum((to is not None or backend is not None, back, abandon)) != 1:
        raise UpgradeUsageError("give one of --to VERSION, --back and --abandon")
    from carpool.evals.runner import RunOptions
    from carpool.evals.short_bench import BenchOptions
    from carpool.evals.upgrade import Change, Trial
    from carpool.evals.upgrade_gate import GateOptions

    change = Change(
        version=to,
        engine=backend,
        program=None if command is None else tuple(shlex.split(command)),
        model=backend_model,
        args=None if engine_args is None else tuple(shlex.split(engine_args)),
    )
    trial = Trial(
        eval_sets=tuple(read_set(text, allow_hooks) for text in sets or ("smoke",)),
        bench=None if no_bench else BenchOptions(streams=bench_streams, seconds=bench_seconds),
        gate=GateOptions(max_slowdown=max_slowdown),
        start_timeout_s=start_timeout,
    )
    options = RunOptions(repeats=repeats, concurrency=concurrency)
    work = _Upgrade(url, admin_key_from(admin_key_file), trial, options, as_json)
    if abandon:
        work.do(work.abandon(model))
    elif back:
        work.do(work.go_back(model))
    elif not work.do(work.go_forward(model, change)):
        raise typer.Exit(NOT_PASSED)


class _Upgrade:
    """The parts of the verb, with what they have in common."""

    def __init__(
        self, url: str, admin_key: str, trial: "Trial", options: "RunOptions", as_json: bool
    ) -> None:
        self._url = url
        self._admin_key = admin_key
        self._trial = trial
        self._options = options
        self._as_json = as_json
        self._admin: GatewayAdmin

    def do(self, work: Coroutine[Any, Any, bool]) -> bool:
        from carpool.evals.gateway_admin import GatewayAdmin

        async def done() -> bool:
            with closing(GatewayAdmin(self._url, self._admin_key)) as self._admin:
                return await work

        return asyncio.run(done())

    async def go_forward(self, model: str | None, change: "Change") -> bool:
        from carpool.evals.upgrade import candidate_of, check_idle, find_model, give_up, stage

        found = await find_model(self._admin, model)
        check_idle(found)
        lock = _lock_of(found)
        first, *others = found.serving()
        pins = [candidate_of(engine, change) for engine in (first, *others)]
        self.say(f"Starting {_called(pins[0])} beside {_called(first.current)} of {first.model}.")
        new = await stage(self._admin, lock, first, pins[0], self._trial.start_timeout_s)
        try:
            outcome = await self._try(first, new)
        except BaseException:
            await give_up(self._admin, lock, new)
            self.say("The new engine is ended; the old one serves on.")
            raise
        if not outcome.judgement.has_passed:
            await give_up(self._admin, lock, new)
            self._tell(first, new, outcome, has_gone_over=False)
            return False
        await self._go_over(new, first)
        for engine, pin in zip(others, pins[1:], strict=True):
            await self._replace(lock, engine, pin)
        self._tell(first, new, outcome, has_gone_over=True)
        return True

    async def go_back(self, model: str | None) -> bool:
        from carpool.evals.upgrade import UpgradeError, check_idle, find_model

        found = await find_model(self._admin, model)
        check_idle(found)
        changed = [(each, each.previous) for each in found.serving() if each.previous is not None]
        if not changed:
            raise UpgradeError(
                f"{found.engines[0].model} has not been upgraded: nothing to go back to"
            )
        for engine, pin in changed:
            self.say(f"Starting {_called(pin)} beside {_called(engine.current)} of {engine.model}.")
            await self._replace(_lock_of(found), engine, pin)
        engine, pin = changed[0]
        if self._as_json:
            typer.echo(json.dumps({"model": engine.model, "version": pin.backend.version}))
        else:
            typer.echo(f"{engine.model} is back on {_called(pin)}.")
        return True

    async def abandon(self, model: str | None) -> bool:
        from carpool.evals.upgrade import abandon, find_model

        found = await find_model(self._admin, model)
        left = await abandon(self._admin, _lock_of(found), found)
        names = ", ".join(engine.name for engine in left) or "nothing: no engine was left behind"
        typer.echo(
            json.dumps([engine.name for engine in left]) if self._as_json else f"Ended {names}."
        )
        return True

    # ------------------------------------------------------------------ steps

    async def _try(self, old: "Engine", new: "Engine") -> "Outcome":
        from carpool.evals.upgrade import try_both

        return await try_both(self._admin, old, new, self._trial, self)

    async def _replace(self, lock: "LockFile", old: "Engine", pin: "Pin") -> None:
        from carpool.evals.upgrade import stage

        new = await stage(self._admin, lock, old, pin, self._trial.start_timeout_s)
        await self._go_over(new, old)

    async def _go_over(self, new: "Engine", old: "Engine") -> None:
        from carpool.evals.upgrade import go_over

        self.say(f"{new.name} takes over; {old.name} finishes what it has.")
        await go_over(self._admin, new, old)

    def say(self, sentence: str) -> None:
        typer.echo(sentence, err=True)

    async def run(self, eval_set: "EvalSet", endpoint: "Endpoint", name: str) -> "EvalRun":
        with run_writer(None, f"{eval_set.name}-{name}") as writer:
            try:
                await ask_all(eval_set, endpoint, self._options, writer, name)
            finally:
                self.say(f"The {name} version's answers are in {writer.path}")
        return writer.found

    # ------------------------------------------------------------------ what came of it

    def _tell(
        self, old: "Engine", new: "Engine", outcome: "Outcome", *, has_gone_over: bool
    ) -> None:
        if self._as_json:
            typer.echo(json.dumps(_as_dict(old, new, outcome, has_gone_over)))
            return
        for comparison in outcome.comparisons:
            print_comparison(comparison)
            typer.echo()
        for name, figures in (("old", outcome.old), ("new", outcome.new)):
            if figures is not None:
                typer.echo(_bench_line(name, figures))
        for note in outcome.judgement.notes:
            typer.echo(f"note: {note}")
        if has_gone_over:
            typer.echo(f"The gate passed: {old.model} is served by {new.name} now.")
            typer.echo("Back again: carpool upgrade --back")
            return
        typer.echo(f"The gate stopped {new.name}; {old.name} serves on:")
        for reason in outcome.judgement.reasons:
            typer.echo(f"  {reason}")
        sys.stdout.flush()


def _lock_of(found: "Engines") -> "LockFile":
    from carpool.gateway.lock_file import LockFile

    if found.lock is None:
        raise UpgradeUsageError("this gateway keeps no lock file")
    return LockFile(found.lock)


def _called(pin: "Pin | None") -> str:
    if pin is None:
        return "nothing"
    version = pin.backend.version or pin.engine_version
    return f"{pin.backend.engine} {version}" if version else pin.backend.engine


def _bench_line(name: str, figures: "BenchFigures") -> str:
    ttft = "-" if figures.ttft_p50_ms is None else f"{figures.ttft_p50_ms:.0f} ms"
    tpot = "-" if figures.tpot_p50_ms is None else f"{figures.tpot_p50_ms:.1f} ms"
    return (
        f"load, {name}: {figures.output_tokens_per_s:.1f} tokens/s, median TTFT {ttft}, median "
        f"TPOT {tpot}, {figures.num_failed} of {figures.num_requests} requests failed"
    )


def _as_dict(
    old: "Engine", new: "Engine", outcome: "Outcome", has_gone_over: bool
) -> dict[str, Any]:
    from dataclasses import asdict

    from carpool.evals.as_json import comparison_as_dict

    return {
        "model": old.model,
        "old": old.name,
        "new": new.name,
        "has_gone_over": has_gone_over,
        "reasons": list(outcome.judgement.reasons),
        "notes": list(outcome.judgement.notes),
        "evals": [comparison_as_dict(each) for each in outcome.comparisons],
        "bench": {
            "old": None if outcome.old is None else asdict(outcome.old),
            "new": None if outcome.new is None else asdict(outcome.new),
        },
    }

"""A fleet whose agents share long system prompts, without and with the prefix cache."""

import dataclasses
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from carpool.engine.core import ModelExecutor
from carpool.lab.findings import Chart, Findings, Table
from carpool.lab.fleet import Decode, Encode, Move, make_fleet, play
from carpool.lab.games import Game
from carpool.lab.lab_engine import LabEngine, Progress, percentile
from carpool.lab.step_record import StepRecord
from carpool.scheduling.config import SchedulerConfig


@dataclass(frozen=True, slots=True)
class FleetFigures:
    """TTFT is from a question to the first token of its answer. A move is on time if it comes
    before its player's next one is due; a fleet keeps up if all those of the second half of
    the run are, when its system prompts have been seen. Prompt tokens are means per answered
    move."""

    prefix_cache: str
    num_moves_due: int
    num_moves: int
    num_moves_on_time: int
    ttft_p50_ms: float
    ttft_p99_ms: float
    prompt_tokens: float
    prompt_tokens_computed: float
    keeps_up: bool


def measure_fleet(
    executor: ModelExecutor,
    config: SchedulerConfig,
    games: Sequence[Game],
    seconds: int,
    encode: Encode,
    decode: Decode,
    progress: Callable[[str], Progress],
) -> tuple[FleetFigures, ...]:
    """Two players of each of `games` for `seconds`, cache off and then on."""
    figures = []
    for name, is_on in (("off", False), ("on", True)):
        engine = LabEngine(executor, dataclasses.replace(config, enable_prefix_cache=is_on))
        players = make_fleet(games)
        report = progress(f"prefix cache {name}")
        moves = play(engine, players, seconds, encode, decode, report, time.sleep)
        figures.append(fleet_figures(name, len(players), seconds, moves, engine.steps))
    return tuple(figures)


def fleet_figures(
    name: str,
    num_players: int,
    seconds: int,
    moves: Sequence[Move],
    steps: Sequence[StepRecord],
) -> FleetFigures:
    on_time = [move.beat for move in moves if move.is_on_time]
    half = seconds // 2
    ttfts = [1e3 * move.timing.ttft for move in moves]
    num_prompt_tokens = sum(len(move.timing.request.prompt_token_ids) for move in moves)
    return FleetFigures(
        prefix_cache=name,
        num_moves_due=num_players * seconds,
        num_moves=len(moves),
        num_moves_on_time=len(on_time),
        ttft_p50_ms=percentile(ttfts, 50),
        ttft_p99_ms=percentile(ttfts, 99),
        prompt_tokens=num_prompt_tokens / len(moves),
        prompt_tokens_computed=sum(step.num_prompt_tokens for step in steps) / len(moves),
        keeps_up=sum(beat >= half for beat in on_time) == num_players * (seconds - half),
    )


def fleet_findings(
    figures: tuple[FleetFigures, ...], games: Sequence[Game], seconds: int
) -> Findings:
    labels = tuple(f"cache {each.prefix_cache}" for each in figures)
    players = " and ".join(f"two {game.name} players" for game in games)
    return Findings(
        "prefix_cache",
        tuple(dataclasses.asdict(each) for each in figures),
        Table(
            f"3. Prefix cache: {players}, one move a second each, for {seconds} s",
            ("prefix cache", "TTFT p50 ms", "TTFT p99 ms", "prompt tokens",
             "of them computed", "moves on time", "keeps up"),
            tuple(
                (
                    each.prefix_cache,
                    f"{each.ttft_p50_ms:,.0f}",
                    f"{each.ttft_p99_ms:,.0f}",
                    f"{each.prompt_tokens:,.0f}",
                    f"{each.prompt_tokens_computed:,.0f}",
                    f"{each.num_moves_on_time} of {each.num_moves_due}",
                    "yes" if each.keeps_up else "no",
                )
                for each in figures
            ),
        ),
        (
            Chart("Time to first token of a move (less is better)", "milliseconds", labels,
                  {"p50": tuple(each.ttft_p50_ms for each in figures),
                   "p99": tuple(each.ttft_p99_ms for each in figures)}, "{:,.0f}"),
            Chart("Prompt tokens computed for a move (less is better)", "tokens", labels,
                  {"": tuple(each.prompt_tokens_computed for each in figures)}, "{:,.0f}"),
            Chart("Moves on time (more is better)",
                  f"moves, of {figures[0].num_moves_due} due", labels,
                  {"": tuple(float(each.num_moves_on_time) for each in figures)}, "{:,.0f}",
                  limit=figures[0].num_moves_due),
        ),
        _sentence(*figures),
    )  # fmt: skip


def _sentence(off: FleetFigures, on: FleetFigures) -> str:
    return (
        f"Without the prefix cache the fleet {_keeps_up(off)}; with it, the fleet {_keeps_up(on)}: "
        f"{on.prompt_tokens_computed:,.0f} prompt tokens are computed for a move instead of "
        f"{off.prompt_tokens_computed:,.0f}, and half of the moves begin within "
        f"{on.ttft_p50_ms:,.0f} ms of being asked for, instead of {off.ttft_p50_ms:,.0f} ms."
    )


def _keeps_up(figures: FleetFigures) -> str:
    words = "keeps up" if figures.keeps_up else "does not keep up"
    return f"{words} ({figures.num_moves_on_time} of {figures.num_moves_due} moves on time)"

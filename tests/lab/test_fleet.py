"""Players ask on their beats, miss those that pass while an answer is late, and share rules."""

from collections.abc import Callable, Sequence

import pytest

from carpool.lab.fleet import MOVE_TOKENS, Move, make_fleet, play
from carpool.lab.games import Game
from carpool.lab.lab_engine import LabEngine
from carpool.lab.shared_prefix import FleetFigures, fleet_figures

GAMES = (Game("go", "r" * 40, ("Black", "White")), Game("reversi", "s" * 40, ("Dark", "Light")))
SECONDS = 4


def encode(system: str, user: str) -> list[int]:
    """One token for each character of the rules, and for each move of the record."""
    return [ord(letter) % 7 for letter in system] + [1] * user.count("move,") + [3]


def decode(token_ids: Sequence[int]) -> str:
    return "a  move,"


@pytest.fixture
def run(make_engine: Callable[..., LabEngine], clock) -> Callable[..., list[Move]]:  # type: ignore[no-untyped-def]
    def run(engine: LabEngine) -> list[Move]:
        players = make_fleet(GAMES)
        return play(engine, players, SECONDS, encode, decode, lambda *_: None, clock.sleep)

    return run


def figures(moves: list[Move], engine: LabEngine) -> FleetFigures:
    return fleet_figures("", 4, SECONDS, moves, engine.steps)


def test_players_take_turns_within_a_second() -> None:
    fleet = make_fleet(GAMES)
    assert [(player.side, player.due_at) for player in fleet] == [
        ("Black", 0.0),
        ("Dark", 0.25),
        ("White", 0.5),
        ("Light", 0.75),
    ]
    assert fleet[0].match is fleet[2].match


def test_a_fast_engine_answers_every_beat(run, make_engine: Callable[..., LabEngine]) -> None:  # type: ignore[no-untyped-def]
    engine = make_engine(seconds_per_token=0.001)
    moves = run(engine)
    assert sorted(move.beat for move in moves) == sorted(4 * list(range(SECONDS)))
    assert all(move.is_on_time for move in moves)
    assert {len(move.timing.token_ids) for move in moves} == {MOVE_TOKENS}
    assert figures(moves, engine).keeps_up


def test_a_slow_engine_misses_beats_and_ends(run, make_engine: Callable[..., LabEngine]) -> None:  # type: ignore[no-untyped-def]
    engine = make_engine(seconds_per_token=0.02, enable_prefix_cache=False)
    moves = run(engine)
    assert 4 <= len(moves) < 4 * SECONDS
    assert not figures(moves, engine).keeps_up


def test_the_cache_spares_the_rules_and_the_record(  # type: ignore[no-untyped-def]
    run, make_engine: Callable[..., LabEngine]
) -> None:
    computed = {}
    for is_on in (False, True):
        engine = make_engine(enable_prefix_cache=is_on)
        computed[is_on] = figures(run(engine), engine)
    assert computed[False].prompt_tokens_computed == computed[False].prompt_tokens
    assert computed[True].prompt_tokens == computed[False].prompt_tokens
    assert computed[True].prompt_tokens_computed < 0.3 * computed[True].prompt_tokens

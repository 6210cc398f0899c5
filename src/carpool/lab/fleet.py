"""A fleet of agents: players of board games, each of whom moves once a second."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from carpool.lab.games import Game
from carpool.lab.lab_engine import LabEngine, Progress, Timing
from carpool.lab.workload import SyntheticRequest

MOVE_TOKENS = 8
"""Tokens of one answer: enough for a move."""
MOVE_INTERVAL_S = 1.0

Encode = Callable[[str, str], Sequence[int]]
"""Token ids of a prompt: of a system message and a user message."""
Decode = Callable[[Sequence[int]], str]


@dataclass(slots=True)
class Match:
    """A game that two play, and what they have answered so far. Legal or not: the lab
    measures how fast moves come, not how good they are."""

    game: Game
    moves: list[str] = field(default_factory=list)

    def question(self, side: str) -> str:
        """What a player is asked: the record first, so that both sides share it as a prefix."""
        record = " ".join(f"{number}. {move}" for number, move in enumerate(self.moves, 1))
        return f"The moves so far: {record or 'none'}\nYou play {side}. Your move:"


@dataclass(slots=True)
class Player:
    """Moves are due at `first_due_at` and every `MOVE_INTERVAL_S` after it, in seconds from
    the start. A player whose answer is late misses the moves that were due meanwhile."""

    match: Match
    side: str
    first_due_at: float
    beat: int = 0
    timing: Timing | None = None

    @property
    def due_at(self) -> float:
        """When the move of this beat is due, or was."""
        return self.first_due_at + self.beat * MOVE_INTERVAL_S

    def go_on(self, now: float) -> None:
        """Wait for the next move that is not due yet."""
        self.timing = None
        self.beat += 1
        while self.due_at < now:
            self.beat += 1


@dataclass(frozen=True, slots=True)
class Move:
    """The answer of one beat, and whether it came before the player's next beat."""

    timing: Timing
    beat: int
    is_on_time: bool


def make_fleet(games: Sequence[Game]) -> list[Player]:
    """Two players for each game, their first moves spread evenly over one interval."""
    matches = [Match(game) for game in games]
    seats = [(match, match.game.sides[turn]) for turn in (0, 1) for match in matches]
    return [
        Player(match, side, number * MOVE_INTERVAL_S / len(seats))
        for number, (match, side) in enumerate(seats)
    ]


def play(
    engine: LabEngine,
    players: Sequence[Player],
    seconds: int,
    encode: Encode,
    decode: Decode,
    progress: Progress,
    sleep: Callable[[float], None],
) -> list[Move]:
    """Let the fleet play for `seconds`, and wait for the answers under way. Each player makes
    one move at least; missed moves are not among those returned."""
    start = engine.clock()
    moves: list[Move] = []
    while True:
        now = engine.clock() - start
        progress(min(int(now), seconds), seconds)
        idle = [player for player in players if player.timing is None]
        for player in idle:
            if player.due_at <= now and (now < seconds or player.beat == 0):
                player.timing = _ask(engine, player, encode)
        if engine.is_busy:
            engine.step()
            moves += _finish_moves(players, start, decode)
        elif now < seconds and (next_due := min(each.due_at for each in players)) < seconds:
            sleep(max(0.0, next_due - now))
        else:
            return moves


def _ask(engine: LabEngine, player: Player, encode: Encode) -> Timing:
    game = player.match.game
    return engine.ask(
        SyntheticRequest(
            request_id=f"{game.name}-{player.side}-{player.beat}",
            prompt_token_ids=tuple(encode(game.rules, player.match.question(player.side))),
            num_output_tokens=MOVE_TOKENS,
            max_tokens=MOVE_TOKENS,
        )
    )


def _finish_moves(players: Sequence[Player], start: float, decode: Decode) -> list[Move]:
    """Write down the moves that the last step ended."""
    moves = []
    for player in players:
        timing = player.timing
        if timing is None or not timing.finished_at:
            continue
        player.match.moves.append(" ".join(decode(timing.token_ids).split()))
        finished_at = timing.finished_at - start
        moves.append(Move(timing, player.beat, finished_at <= player.due_at + MOVE_INTERVAL_S))
        player.go_on(finished_at)
    return moves

"""A request's place: waiting, then in flight, then gone."""

from dataclasses import dataclass

from carpool.store.lane import Lane


@dataclass(eq=False, slots=True, kw_only=True)
class Ticket:
    """Token counts are expectations, over all of its `num_seqs` sequences. `weight` is the
    person's share, 1.0 being everybody's;
    `max_in_flight` the most requests of its key in flight at once, `person_max_in_flight` of
    its person, and `model_max_in_flight` of its person at its model. Times are monotonic seconds,
    `can_hold` says that it waits while no engine is there, and `position` is how many were to
    go before it when it came."""

    request_id: str
    person_id: str
    num_prompt_tokens: int
    num_output_tokens: int
    num_seqs: int = 1
    weight: float = 1.0
    lane: Lane = Lane.INTERACTIVE
    key_id: str = ""
    max_in_flight: int | None = None
    person_max_in_flight: int | None = None
    model_max_in_flight: int | None = None
    can_hold: bool = True
    entered_at: float = 0.0
    granted_at: float | None = None
    position: int = 0

    @property
    def num_tokens(self) -> int:
        return self.num_prompt_tokens + self.num_output_tokens

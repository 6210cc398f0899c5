"""One look down the waiting queue."""

from carpool.scheduling.config import SchedulerConfig
from carpool.scheduling.request import Request, WaitingReason

_CLOSED = (
    WaitingReason.SEATS,
    WaitingReason.TOKEN_BUDGET,
    WaitingReason.FAIR_SHARE,
    WaitingReason.PREEMPTION,
    WaitingReason.BATCH,
)
_PERSON_CAPS = (WaitingReason.PERSON_RUNNING_CAP, WaitingReason.PERSON_BLOCK_CAP)


class AdmissionRound:
    """Who was let in, who was held back and why, and when to stop looking.

    A request whose blocks do not fit lets smaller ones past, `max_skip_ahead` in its life;
    then the round ends at it, and the blocks that come free are kept for it. So a big one
    neither freezes the queue nor starves. Who waits for a seat, tokens or a batch ends the
    round, as all behind would. A person at a cap is left out, and nobody else waits for it.
    """

    def __init__(self, config: SchedulerConfig) -> None:
        self._max_skip_ahead = config.max_skip_ahead
        self._max_held_back = config.max_num_seqs + config.max_skip_ahead
        self.passed_over: list[Request] = []
        self.admitted: list[Request] = []
        self.held_back: list[Request] = []
        self.skipped_people: set[str] = set()
        self.is_over = False

    def admit(self, request: Request) -> None:
        self.admitted.append(request)
        for other in self.passed_over:
            other.num_passed_over += 1
            self._end_if_impatient(other)

    def hold_back(self, request: Request, reason: WaitingReason) -> None:
        request.waiting_reason = reason
        self.held_back.append(request)
        if reason in _CLOSED or len(self.held_back) > self._max_held_back:
            self.is_over = True
        elif reason in _PERSON_CAPS:
            self.skipped_people.add(request.person_id)
        elif reason is WaitingReason.KV_BLOCKS:
            self.passed_over.append(request)
            self._end_if_impatient(request)

    def close(self) -> None:
        """Make way for the next round."""
        for request in self.held_back:
            if not request.is_finished:
                request.waiting_reason = WaitingReason.QUEUED

    def _end_if_impatient(self, request: Request) -> None:
        if (
            request.num_passed_over >= self._max_skip_ahead
            or len(self.passed_over) > self._max_skip_ahead
        ):
            self.is_over = True

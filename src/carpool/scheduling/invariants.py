"""What must hold between any two events, whatever the requests do."""

from collections.abc import Mapping, Sequence

from carpool.scheduling.request import Request, RequestStatus


class InvariantViolation(RuntimeError):
    """The scheduler's own books disagree: a bug in it, never the fault of a request."""


def check_places(
    requests: Mapping[str, Request],
    running: Sequence[Request],
    preempted: Sequence[Request],
    waiting: Sequence[Request],
) -> None:
    """Raise InvariantViolation unless each unfinished request is in exactly one place, the
    one its status names, has work left, and those admitted stand in order of admission,
    the running before the preempted."""
    for place, status in (
        (running, RequestStatus.RUNNING),
        (preempted, RequestStatus.PREEMPTED),
        (waiting, RequestStatus.WAITING),
    ):
        for request in place:
            _check_place(request, requests, status)
    num_placed = len(running) + len(preempted) + len(waiting)
    if num_placed != len(requests):
        raise InvariantViolation(
            f"{len(requests)} requests are unfinished, but {num_placed} have a place"
        )
    line = [*running, *preempted]
    sequence = [request.admission_seq for request in line]
    if sequence != sorted(set(sequence)):
        raise InvariantViolation(f"not in the order of admission: {line}")


def _check_place(request: Request, requests: Mapping[str, Request], status: RequestStatus) -> None:
    if request.status is not status or requests.get(request.request_id) is not request:
        raise InvariantViolation(f"{request!r} stands among the {status.value}")
    if status is not RequestStatus.RUNNING and (request.block_table or request.num_computed_tokens):
        raise InvariantViolation(f"{request!r} holds {request.block_table} and does not run")
    if request.num_computed_tokens >= request.num_tokens:
        raise InvariantViolation(f"{request!r} has nothing left to compute")

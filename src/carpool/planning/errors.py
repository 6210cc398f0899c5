"""What a plan cannot be made of."""

from carpool.errors import CarpoolError


class PlanError(CarpoolError):
    """A value that no plan can be made with; names it, what was expected and what would work."""


def require_positive(name: str, value: float | None) -> None:
    """Raises `PlanError` for a given value that is not above zero."""
    if value is not None and not value > 0:
        raise PlanError(f"{name} is {value:g}; it must be above 0")

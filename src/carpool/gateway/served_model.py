"""A model as the gateway serves it: its names, its queue, and the engines behind it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from carpool.backends.backend import BackendState
from carpool.gateway.gate import Gate
from carpool.gateway.model_config import WhenDown
from carpool.gateway.outcome import Outcome
from carpool.gateway.refusal import Refusal, whole_seconds
from carpool.gateway.routing import Replica
from carpool.gateway.token_estimate import BytesPerToken
from carpool.store.limits import NO_LIMITS, Limits


@dataclass(slots=True, kw_only=True)
class ServedModel:
    """`name` is what clients ask for first, `aliases` what else they may. `when_down` says what
    becomes of requests while no replica is ready; `fallback` is there if it is FALLBACK."""

    name: str
    gate: Gate
    replicas: list[Replica]
    aliases: tuple[str, ...] = ()
    when_down: WhenDown = WhenDown.HOLD
    fallback: Replica | None = None
    is_private: bool = False
    limits: Limits = NO_LIMITS
    """For each person, as far as this model goes."""
    bytes_per_token: BytesPerToken = field(default_factory=BytesPerToken)

    @property
    def names(self) -> tuple[str, ...]:
        return (self.name, *self.aliases)

    def can_hold(self, is_private: bool) -> bool:
        """Whether a request waits while the engines are away."""
        return self.when_down is WhenDown.HOLD or (self.fallback is not None and is_private)

    def away(self) -> Refusal | None:
        """Why no replica is there; None if one is."""
        states = {replica.state for replica in self.replicas}
        if BackendState.READY in states:
            return None
        wait_s = max(1.0, min(replica.retry_after_s() for replica in self.replicas))
        is_loading = BackendState.LOADING in states
        return Refusal(
            Outcome.LOADING if is_loading else Outcome.BACKEND_DOWN,
            f"the engine of {self.name} is {'loading' if is_loading else 'down'}; "
            f"try again in {whole_seconds(wait_s)} s",
            limit="backend",
            retry_after_s=wait_s,
        )


def by_name(models: Sequence[ServedModel]) -> Mapping[str, ServedModel]:
    """Raises ValueError when two models answer to one name."""
    found: dict[str, ServedModel] = {}
    for model in models:
        for name in model.names:
            if name in found:
                raise ValueError(f"two models are called {name!r}")
            found[name] = model
    return found

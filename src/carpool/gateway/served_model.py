"""A model as the gateway serves it: its names, its queue, and the engines behind it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from carpool.gateway.gate import Gate
from carpool.gateway.routing import Replica
from carpool.gateway.token_estimate import BytesPerToken
from carpool.gateway.upstream_errors import Timeouts


@dataclass(slots=True, kw_only=True)
class ServedModel:
    """`name` is what clients ask for first, `aliases` what else they may. `timeouts` are for
    the engine; the wait in the queue has its own bound, in the gate."""

    name: str
    gate: Gate
    replicas: list[Replica]
    aliases: tuple[str, ...] = ()
    timeouts: Timeouts = field(default_factory=Timeouts)
    bytes_per_token: BytesPerToken = field(default_factory=BytesPerToken)

    @property
    def names(self) -> tuple[str, ...]:
        return (self.name, *self.aliases)


def by_name(models: Sequence[ServedModel]) -> Mapping[str, ServedModel]:
    """Raises ValueError when two models answer to one name."""
    found: dict[str, ServedModel] = {}
    for model in models:
        for name in model.names:
            if name in found:
                raise ValueError(f"two models are called {name!r}")
            found[name] = model
    return found

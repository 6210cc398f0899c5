"""Several engines that serve the same model: their states and addresses, nothing more."""

import asyncio
from collections.abc import Sequence

from carpool.backends.backend import BackendState
from carpool.backends.supervisor import Supervisor


class ReplicaSet:
    """Starts and stops its supervisors together; which one gets a request is not its affair."""

    def __init__(self, model: str, supervisors: Sequence[Supervisor]) -> None:
        self.model = model
        self.replicas = tuple(supervisors)

    def start(self) -> None:
        for replica in self.replicas:
            replica.start()

    async def stop(self, drain_s: float = 30.0) -> None:
        await asyncio.gather(*(replica.stop(drain_s) for replica in self.replicas))

    @property
    def state(self) -> BackendState:
        """The best state among them: one that is ready is enough to serve."""
        states = {replica.status.state for replica in self.replicas}
        order = (BackendState.READY, BackendState.LOADING, BackendState.DRAINING)
        return next((state for state in order if state in states), BackendState.DOWN)

    def ready(self) -> tuple[Supervisor, ...]:
        return tuple(
            replica for replica in self.replicas if replica.status.state is BackendState.READY
        )

    def retry_after_s(self) -> int:
        """When the first of them may be ready; 0 if one is."""
        return min((replica.retry_after_s() for replica in self.replicas), default=1)

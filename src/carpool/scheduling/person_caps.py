"""How much of the machine each person holds now, and whether they may have more."""

from collections import Counter

from carpool.scheduling.config import SchedulerConfig
from carpool.scheduling.request import WaitingReason


class PersonCaps:
    """Running sequences and KV blocks by person. A shared block counts for each holder."""

    def __init__(self, config: SchedulerConfig) -> None:
        self._max_running = config.max_running_per_person
        self._max_blocks = config.max_blocks_per_person
        self.num_running: Counter[str] = Counter()
        self.num_blocks: Counter[str] = Counter()

    def reason_to_wait(self, person_id: str, num_blocks: int) -> WaitingReason | None:
        """Why this person may not have one more sequence of `num_blocks` blocks now."""
        if self._max_running is not None and self.num_running[person_id] >= self._max_running:
            return WaitingReason.PERSON_RUNNING_CAP
        if (
            self._max_blocks is not None
            and self.num_blocks[person_id] + num_blocks > self._max_blocks
        ):
            return WaitingReason.PERSON_BLOCK_CAP
        return None

    def held(self) -> dict[str, tuple[int, int]]:
        """Running sequences and blocks of each person who has any."""
        return {
            person_id: (self.num_running[person_id], self.num_blocks[person_id])
            for person_id in self.num_running
        }

    def add(self, person_id: str, num_running: int, num_blocks: int) -> None:
        """Change what a person holds; negative to give back."""
        _add(self.num_running, person_id, num_running)
        _add(self.num_blocks, person_id, num_blocks)


def _add(counter: Counter[str], person_id: str, amount: int) -> None:
    counter[person_id] += amount
    if counter[person_id] == 0:
        del counter[person_id]

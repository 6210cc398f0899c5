"""Which requests may take an occupied machine's next seat."""

from enum import StrEnum


class Lane(StrEnum):
    """INTERACTIVE waits for people; BATCH only uses what would be idle otherwise."""

    INTERACTIVE = "interactive"
    BATCH = "batch"

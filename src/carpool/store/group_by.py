"""What usage is summed up by."""

from enum import StrEnum


class GroupBy(StrEnum):
    """DAY is a UTC day."""

    PERSON = "person"
    KEY = "key"
    MODEL = "model"
    DAY = "day"

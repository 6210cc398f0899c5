"""What can go wrong with the store."""

from carpool.errors import CarpoolError


class StoreError(CarpoolError):
    """The store refuses, or its database is not what it should be; trying again will not help."""


class DatabaseAway(StoreError):
    """The database cannot be reached, or is locked or full, at the moment: try again later."""


class InvalidField(StoreError):
    """`field` of a person or a key is not allowed; the message says what is."""

    def __init__(self, field: str, message: str) -> None:
        super().__init__(f"{field}: {message}")
        self.field = field


class NotFound(StoreError):
    """No person or key goes by that name."""

"""Somebody who uses the machine."""

from dataclasses import dataclass

from carpool.store.limits import NO_LIMITS, Limits


@dataclass(frozen=True, slots=True)
class Person:
    """`weight` is the share of the machine under load: 2.0 gets twice the tokens of 1.0.
    `limits` hold for all their keys together."""

    person_id: str
    name: str
    weight: float = 1.0
    limits: Limits = NO_LIMITS

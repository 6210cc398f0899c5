"""Somebody who uses the machine."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Person:
    """`weight` is the share of the machine under load: 2.0 gets twice the tokens of 1.0."""

    person_id: str
    name: str
    weight: float = 1.0

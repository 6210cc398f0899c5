"""Amounts of memory as people write them."""

import re

import typer

_UNITS = {"": 1, "k": 2**10, "m": 2**20, "g": 2**30, "t": 2**40}
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([kmgt]?)(?:i?b)?", re.IGNORECASE)


def parse_size(text: str) -> int:
    """Bytes of "4GiB", "512M" or "1000000"; units are powers of 1024."""
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        raise typer.BadParameter(f"{text!r} is no amount of memory; write it like 4GiB or 512MiB")
    number, unit = match.groups()
    return int(float(number) * _UNITS[unit.lower()])

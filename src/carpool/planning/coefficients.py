"""What engines take beside weights and KV cache, by engine and version.

`coefficients.json` is written by `benchmarks/fit_planner.py`, which fits them to public
start-up reports; what few reports speak of stands there as it was set by hand.
"""

import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from carpool.planning.engine_kind import EngineKind, Version

_FILE = Path(__file__).with_name("coefficients.json")
_NEWEST: Version = (999,)


@dataclass(frozen=True, slots=True)
class Coefficients:
    """logits: float32 copies of the sampler's logits alive at the peak. hidden: copies of
    the batch's hidden states. forward: copies of the widest MLP tensor. moe_workspace: of
    the buffers of fused experts. `graphs_counted`: taken from the budget before the KV cache
    is sized, not after."""

    logits: float
    hidden: float
    forward: float
    moe_workspace: float
    non_torch_gib: float
    non_torch_parallel_gib: float
    graphs_gib: float
    graphs_counted: bool


def coefficients(engine: EngineKind, version: Version | None) -> Coefficients:
    """Those of the newest version up to `version`; of the newest of all for None."""
    rows = [row for row in _table()[engine.value] if row[0] <= (version or _NEWEST)]
    return rows[-1][1]


@cache
def _table() -> dict[str, list[tuple[Version, Coefficients]]]:
    fields = json.loads(_FILE.read_text(encoding="utf-8"))
    return {
        engine: [
            (tuple(row["from"]), Coefficients(**{k: v for k, v in row.items() if k != "from"}))
            for row in rows
        ]
        for engine, rows in fields.items()
        if engine != "source"
    }

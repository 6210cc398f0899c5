"""What the team's own requests are like: their lengths, out of the ledger."""

import random
from collections.abc import Sequence

from sqlalchemy import select

from carpool.bench.errors import BenchError
from carpool.bench.prompts import Shape
from carpool.store.database import Database
from carpool.store.schema import usage

MAX_ROWS = 20_000


def ledger_shapes(
    database: Database, *, model: str | None = None, since: float | None = None, seed: int = 0
) -> Sequence[Shape]:
    """Of the newest requests that were answered, in random order. Never who asked, or what.

    Raises BenchError where there are none; DatabaseAway, StoreError.
    """
    query = (
        select(usage.c.prompt_tokens, usage.c.output_tokens)
        .where(usage.c.status < 400, usage.c.prompt_tokens > 0, usage.c.output_tokens > 0)
        .order_by(usage.c.started_at.desc())
        .limit(MAX_ROWS)
    )
    if model is not None:
        query = query.where(usage.c.model == model)
    if since is not None:
        query = query.where(usage.c.started_at >= since)
    with database.read() as connection:
        shapes = [Shape(int(prompt), int(output)) for prompt, output in connection.execute(query)]
    if not shapes:
        of_model = f" with the model {model!r}" if model else ""
        raise BenchError(
            f"the ledger at {database.url} has no answered requests{of_model}; serve some first, "
            "or give lengths by --input-tokens and --output-tokens"
        )
    random.Random(seed).shuffle(shapes)  # noqa: S311
    return shapes

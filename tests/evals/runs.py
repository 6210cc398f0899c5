"""Runs of eval sets against mock engines, without a command line."""

import asyncio
from pathlib import Path
from typing import Any

from carpool.evals.endpoint import Endpoint
from carpool.evals.eval_run import EvalRun, RunWriter
from carpool.evals.eval_set import EvalSet
from carpool.evals.runner import RunOptions, run_evals


class Runs:
    """Keeps the runs of a test apart, in `folder`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.num = 0

    def run(self, eval_set: EvalSet, url: str, model: str | None = None, **options: Any) -> EvalRun:
        """The whole run; what is left of one that raises is in `last`."""
        self.num += 1
        self.writer = RunWriter(self.folder / f"run-{self.num}.jsonl")
        try:
            asyncio.run(self._run(eval_set, url, model, options))
        finally:
            self.writer.close()
        return self.last

    @property
    def last(self) -> EvalRun:
        found = self.writer.run()
        assert found is not None, "nothing was run"
        return found

    async def _run(
        self, eval_set: EvalSet, url: str, model: str | None, options: dict[str, Any]
    ) -> None:
        key, timeout_s = options.pop("api_key", None), options.pop("timeout_s", 10.0)
        endpoint = Endpoint(url, model, api_key=key, timeout_s=timeout_s)
        try:
            await run_evals(eval_set, endpoint, RunOptions(**options), self.writer)
        finally:
            endpoint.close()

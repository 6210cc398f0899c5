"""Fixtures of the tests of evals."""

from pathlib import Path

import pytest

from tests.evals.runs import Runs


@pytest.fixture
def runs(tmp_path: Path) -> Runs:
    return Runs(tmp_path / "runs")

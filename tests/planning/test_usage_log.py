"""A team's own usage in place of a preset."""

from pathlib import Path

import pytest

from carpool.planning.errors import PlanError
from carpool.planning.profile import PROFILES
from carpool.planning.usage_log import hours_per_month, profile_from_usage

HEADER = "person_id,started_at,total_ms,prompt_tokens,cached_tokens,output_tokens\n"


def write(folder: Path, text: str) -> Path:
    path = folder / "usage.csv"
    path.write_text(text)
    return path


def test_a_line_a_request(tmp_path: Path) -> None:
    lines = "ana,0,10000,1000,500,100\nana,40,20000,3000,1500,100\nben,0,1000,2000,0,100\n"
    profile = profile_from_usage(write(tmp_path, HEADER + lines), PROFILES["chat"])
    assert (profile.prompt_tokens, profile.output_tokens) == (2000, 100)
    assert profile.context_tokens == 2050
    assert profile.cached_share == pytest.approx(2000 / 6000)
    assert profile.think_seconds == 30
    assert profile.context_spread == pytest.approx(816.5, rel=0.01)
    assert dict(profile.sources)["prompt_tokens"] == f"measured: {tmp_path / 'usage.csv'}"


def test_sums_as_carpool_usage_prints_them(tmp_path: Path) -> None:
    text = "name,num_requests,prompt_tokens,cached_tokens,output_tokens\nana,10,10000,0,2000\n"
    profile = profile_from_usage(write(tmp_path, text), PROFILES["chat"])
    assert (profile.prompt_tokens, profile.output_tokens) == (1000, 200)
    assert profile.think_seconds == PROFILES["chat"].think_seconds


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (HEADER, "no requests in it"),
        ("a,b\n1,2\n", "no column prompt_tokens; columns: a, b"),
        ("prompt_tokens,output_tokens\nx,1\n", "prompt_tokens is 'x'; it must be a number"),
        ("prompt_tokens,output_tokens\n1,-1\n", "output_tokens is '-1'; it must not be below 0"),
        ("num_requests,prompt_tokens,output_tokens\n0,0,0\n", "no requests in it"),
    ],
)
def test_what_is_wrong_is_named(tmp_path: Path, text: str, message: str) -> None:
    path = write(tmp_path, text)
    with pytest.raises(PlanError, match=message) as error:
        profile_from_usage(path, PROFILES["chat"])
    assert str(path) in str(error.value)


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(PlanError, match="cannot be read: No such file"):
        profile_from_usage(tmp_path / "none.csv", PROFILES["chat"])


@pytest.mark.parametrize(
    ("days", "starts_each_day", "hours"),
    [(28, (9,), 730 / 24), (28, (9, 9.5, 14), 730 / 12), (3, (9,), None)],
)
def test_hours_of_use_are_scaled_to_a_month(
    days: int, starts_each_day: tuple[float, ...], hours: float | None
) -> None:
    rows = [
        {"started_at": 86_400 * day + 3600 * start, "total_ms": 60_000}
        for day in range(days)
        for start in starts_each_day
    ]
    found = hours_per_month(rows, "here")
    assert found == (None if hours is None else pytest.approx(hours, rel=0.05))

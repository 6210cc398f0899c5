"""carpool.lock: what it keeps, and what it refuses."""

from pathlib import Path

import pytest

from carpool.gateway.lock_file import LockError, LockFile, Pin
from carpool.gateway.model_config import BackendConfig, ModelConfig, ModelConfigError

OLD = BackendConfig(engine="vllm", model="m", args=("--x",))
NEW = BackendConfig(engine="vllm", model="m", program=("/opt/{version}/vllm",), version="1.1")
MODEL = ModelConfig(name="team", backends=(OLD,))


@pytest.fixture
def lock(tmp_path: Path) -> LockFile:
    return LockFile(tmp_path / "data" / "carpool.lock")


def test_without_a_file_a_model_is_as_it_is_configured(lock: LockFile) -> None:
    assert lock.pinned([MODEL]) == (MODEL,)
    assert not lock.path.exists()


def test_a_promoted_candidate_serves_after_a_restart(lock: LockFile) -> None:
    lock.set_candidate(MODEL, Pin(backend=NEW, model_sha256="ab"))
    assert lock.pinned([MODEL])[0].backends == (OLD,)
    lock.promote(MODEL, 0)
    again = LockFile(lock.path)
    assert again.pinned([MODEL])[0].backends == (NEW,)
    pins = again.pins(MODEL)
    assert pins.candidate is None
    assert pins.engines[0].current == Pin(backend=NEW, model_sha256="ab")
    assert pins.engines[0].previous == Pin(backend=OLD)


def test_what_is_configured_otherwise_later_goes_before_the_lock(lock: LockFile) -> None:
    lock.set_candidate(MODEL, Pin(backend=NEW))
    lock.promote(MODEL, 0)
    other = ModelConfig(name="team", backends=(BackendConfig(engine="llama.cpp"),))
    assert lock.pinned([other]) == (other,)
    assert lock.pinned([MODEL])[0].backends == (NEW,)


def test_there_is_nothing_to_promote_without_a_candidate(lock: LockFile) -> None:
    with pytest.raises(LockError, match="has no candidate for team"):
        lock.promote(MODEL, 0)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("{", "Invalid JSON"),
        ('{"carpool_lock": 2}', "format 2 of another Carpool"),
        ('{"models": {"team": {"configured": [], "engines": 3}}}', "models.team.engines"),
        ('{"models": {"team": {"configured": [{"version": "../x"}]}}}', "version is '../x'"),
    ],
)
def test_a_file_that_says_nothing_of_use(lock: LockFile, text: str, told: str) -> None:
    lock.path.parent.mkdir()
    lock.path.write_text(text)
    with pytest.raises(LockError) as error:
        lock.pinned([MODEL])
    assert told in str(error.value)
    assert str(lock.path) in str(error.value)


def test_a_version_goes_into_a_command_and_so_is_no_path() -> None:
    for version in ("../../bin", "a b", "", "-x"):
        with pytest.raises(ModelConfigError, match="version is"):
            BackendConfig(version=version)

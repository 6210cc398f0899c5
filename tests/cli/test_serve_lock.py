"""What `carpool serve` says of a lock file that was written for other weights."""

from pathlib import Path

import pytest

from carpool.cli.serve_lock import pinned_models
from carpool.gateway.lock_file import LockFile, Pin
from carpool.gateway.model_config import BackendConfig, ModelConfig
from carpool.models.cache import ModelCache
from carpool.models.fingerprint import model_sha256


def test_other_files_than_those_that_were_tried_are_mentioned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("CARPOOL_HOME", str(tmp_path / "home"))
    weights = tmp_path / "weights"
    weights.mkdir()
    (weights / "model.safetensors").write_bytes(b"one")
    old = BackendConfig(engine="vllm", model=str(weights), version="1")
    new = BackendConfig(engine="vllm", model=str(weights), version="2")
    model = ModelConfig(name="team", backends=(old,))
    lock = LockFile(tmp_path / "carpool.lock")
    sha256 = model_sha256(str(weights), ModelCache(tmp_path / "home"))
    lock.set_candidate(model, Pin(backend=new, model_sha256=sha256))
    lock.promote(model, 0)

    assert pinned_models(lock, [model])[0].backends == (new,)
    assert capsys.readouterr().err == ""
    (weights / "model.safetensors").write_bytes(b"other")
    assert pinned_models(lock, [model])[0].backends == (new,)
    assert f"the files of {weights} are not those that {lock.path} was written for" in (
        capsys.readouterr().err
    )
    assert model_sha256("nobody/knows-this", ModelCache(tmp_path / "home")) is None

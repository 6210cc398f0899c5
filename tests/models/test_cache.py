"""The model cache: whole or not at all, and errors that say what to do."""

import errno
import os
import subprocess
import sys
import threading
from collections import namedtuple
from pathlib import Path

import pytest

from carpool.models.cache import CacheError, ModelCache, default_home, disk_bytes

Usage = namedtuple("Usage", "total used free")


@pytest.mark.parametrize(
    ("environ", "home"),
    [
        ({"CARPOOL_HOME": "/a", "XDG_CACHE_HOME": "/b"}, Path("/a")),
        ({"XDG_CACHE_HOME": "/b"}, Path("/b/carpool")),
        ({"CARPOOL_HOME": ""}, Path.home() / ".cache" / "carpool"),
    ],
)
def test_home(environ: dict[str, str], home: Path) -> None:
    assert default_home(environ) == home


def test_published_folder_appears_whole(cache: ModelCache) -> None:
    target = cache.converted("ab", "1")
    with cache.lock(target), cache.making(target) as folder:
        (folder / "result").mkdir()
        (folder / "result" / "weights").write_bytes(b"123")
        assert not target.exists()
        cache.publish(folder / "result", target)
    assert (target / "weights").read_bytes() == b"123"
    assert [path.name for path in target.parent.iterdir()] == [target.name]


def make_half(cache: ModelCache, target: Path, error: BaseException) -> None:
    with cache.lock(target), cache.making(target) as folder:
        (folder / "half").write_bytes(b"1")
        raise error


def test_failed_making_leaves_nothing(cache: ModelCache) -> None:
    target = cache.converted("ab", "1")
    with pytest.raises(KeyboardInterrupt):
        make_half(cache, target, KeyboardInterrupt())
    assert list(target.parent.iterdir()) == []


def test_leftovers_of_a_killed_process_are_cleaned(cache: ModelCache) -> None:
    target = cache.blob("ab")
    leftover = target.parent / f".tmp-{target.name}-1"
    other = target.parent / ".tmp-cd.gguf-1"
    leftover.mkdir(parents=True)
    other.mkdir()
    (leftover / "wheel").write_bytes(b"1")
    with cache.making(target):
        assert not leftover.exists()
    assert other.exists()


def test_publish_replaces_what_stands_there(cache: ModelCache) -> None:
    target = cache.converted("ab", "1")
    target.mkdir(parents=True)
    (target / "half").write_bytes(b"1")
    with cache.making(target) as folder:
        (folder / "result").mkdir()
        cache.publish(folder / "result", target)
    assert list(target.iterdir()) == []


def test_a_second_holder_waits_and_is_told(cache: ModelCache) -> None:
    target = cache.blob("ab")
    order: list[str] = []
    is_waiting = threading.Event()

    def second() -> None:
        with cache.lock(target, is_waiting.set):
            order.append("second")

    with cache.lock(target):
        thread = threading.Thread(target=second)
        thread.start()
        assert is_waiting.wait(10)
        order.append("first")
    thread.join(10)
    assert order == ["first", "second"]


def test_home_that_cannot_be_made_says_what_to_set(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    cache = ModelCache(tmp_path / "file" / "home")
    with pytest.raises(CacheError, match=r"file/home: Not a directory; set CARPOOL_HOME"):
        make_half(cache, cache.blob("ab"), KeyboardInterrupt())
    assert cache.models() == []


@pytest.mark.skipif(os.geteuid() == 0, reason="root writes everywhere")
def test_read_only_home_says_what_to_set(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    cache = ModelCache(tmp_path / "home")
    with pytest.raises(CacheError, match=r"Permission denied; set CARPOOL_HOME"):
        make_half(cache, cache.blob("ab"), KeyboardInterrupt())


def test_disk_full_while_writing_says_so(cache: ModelCache) -> None:
    with pytest.raises(CacheError, match=r"no space left for the model cache .*make room"):
        make_half(cache, cache.blob("ab"), OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)))


def test_too_little_space_is_seen_before_work_begins(
    cache: ModelCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shutil.disk_usage", lambda path: Usage(10, 9, 1_000_000))
    cache.require_space(1_000_000, "fetching m")
    with pytest.raises(CacheError, match=r"fetching m needs 2 MB .* has 1 MB free"):
        cache.require_space(2_000_000, "fetching m")


def test_content_hash_follows_the_content(cache: ModelCache, tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(b"one")
    first = cache.content_hash(path)
    assert cache.content_hash(path) == first
    path.write_bytes(b"other")
    assert cache.content_hash(path) != first
    with pytest.raises(CacheError, match=r"none: cannot be read"):
        cache.content_hash(tmp_path / "none")


def test_content_hash_is_remembered(cache: ModelCache, tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(b"one")
    before = path.stat()
    first = cache.content_hash(path)
    path.write_bytes(b"two")
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert cache.content_hash(path) == first, "same size and mtime: not read again"


def test_content_hash_needs_no_writable_cache(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    cache = ModelCache(tmp_path / "file")
    assert len(cache.content_hash(tmp_path / "file")) == 64


def test_remove_frees_blob_and_conversions(cache: ModelCache) -> None:
    blob, folder, other = cache.blob("ab"), cache.converted("ab", "1"), cache.converted("cd", "1")
    blob.parent.mkdir(parents=True)
    blob.write_bytes(b"12345")
    for path in (folder, other):
        path.mkdir(parents=True)
        (path / "weights").write_bytes(b"123")
    assert cache.remove("ab") == 8
    assert not blob.exists()
    assert not folder.exists()
    assert disk_bytes(other) == 3


def test_a_child_that_inherits_the_lock_holds_it_after_its_parent(cache: ModelCache) -> None:
    target = cache.blob("ab")
    with cache.lock(target) as descriptor:
        child = subprocess.Popen(
            [sys.executable, "-c", "input()"], stdin=subprocess.PIPE, pass_fds=[descriptor]
        )
    waited: list[bool] = []

    def end_child() -> None:
        waited.append(True)
        child.communicate(b"\n")

    with cache.lock(target, end_child):
        assert waited == [True]

"""Where models lie on disk, and how they get there whole or not at all.

    $CARPOOL_HOME, or $XDG_CACHE_HOME/carpool, or ~/.cache/carpool
      blobs/<sha256>.gguf           files as fetched
      converted/<sha256>-<version>/ what the engine loads, with carpool.json written last
      hashes/                       SHA-256 of local files, by path, size and mtime
      locks/                        one per blob or folder, held while it is made

Everything is made under a temporary name in the same folder, synced and renamed. A
temporary name that is found while its lock is held was left by an interrupted run.
"""

import errno
import fcntl
import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from carpool.errors import CarpoolError
from carpool.models.json_file import BadJSON, read_json
from carpool.models.resolved import ResolvedModel, read_manifest

TEMPORARY = ".tmp-"
CHUNK_BYTES = 1 << 20


class CacheError(CarpoolError):
    """The model cache cannot be read or written; the message names the path and the way out."""


def default_home(environ: Mapping[str, str]) -> Path:
    if home := environ.get("CARPOOL_HOME"):
        return Path(home).expanduser().absolute()
    if xdg := environ.get("XDG_CACHE_HOME"):
        return Path(xdg).expanduser().absolute() / "carpool"
    return Path("~/.cache/carpool").expanduser()


class ModelCache:
    """The folder tree above. Creates what it needs when it first writes."""

    def __init__(self, home: Path) -> None:
        self.home = home

    def blob(self, sha256: str) -> Path:
        return self.home / "blobs" / f"{sha256}.gguf"

    def converted(self, sha256: str, version: str) -> Path:
        return self.home / "converted" / f"{sha256}-{version}"

    def models(self) -> list[ResolvedModel]:
        """Every whole converted model, by name."""
        with self._explained():
            folders = sorted((self.home / "converted").glob("[!.]*"))
        found = [model for folder in folders if (model := read_manifest(folder))]
        return sorted(found, key=lambda model: model.name)

    def remove(self, sha256: str) -> int:
        """Delete the blob and every conversion of it; returns the bytes freed."""
        freed = 0
        targets = [self.blob(sha256), *(self.home / "converted").glob(f"{sha256}-*")]
        for target in targets:
            with self.lock(target):
                freed += disk_bytes(target)
                with self._explained():
                    _delete(target)
        return freed

    @contextmanager
    def lock(self, target: Path, on_wait: Callable[[], None] = lambda: None) -> Iterator[int]:
        """Hold the right to make or delete `target`, across processes.

        Calls `on_wait` before it waits for another process. Gives the lock's descriptor: a
        child that inherits it holds the lock for as long as it lives, so a child that outlives
        a killed parent never writes beside the next maker.
        """
        with self._explained():
            folder = self.home / "locks"
            folder.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(folder / f"{target.name}.lock", os.O_RDWR | os.O_CREAT, 0o644)
        try:
            with self._explained():
                try:
                    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    on_wait()
                    fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield descriptor
        finally:
            os.close(descriptor)

    @contextmanager
    def making(self, target: Path) -> Iterator[Path]:
        """Give a temporary folder beside `target`, to be filled, under `target`'s lock.

        The caller ends by `publish`ing something out of it; what is left is deleted.
        """
        with self._explained():
            target.parent.mkdir(parents=True, exist_ok=True)
            for leftover in target.parent.glob(f"{TEMPORARY}{target.name}*"):
                _delete(leftover)
            folder = target.parent / f"{TEMPORARY}{target.name}-{os.getpid()}"
            folder.mkdir()
        try:
            with self._explained():
                yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def publish(self, made: Path, target: Path) -> None:
        """Sync `made` (a file or a folder) to disk and rename it to `target` in one step."""
        with self._explained():
            _sync(made)
            _delete(target)
            made.rename(target)
            _sync_one(target.parent)

    def require_space(self, num_bytes: int, what: str) -> None:
        """Raise `CacheError` when the disk has less room than `what` will take."""
        folder = next(path for path in (self.home, *self.home.parents) if path.exists())
        free = shutil.disk_usage(folder).free
        if free < num_bytes:
            raise CacheError(
                f"{what} needs {megabytes(num_bytes)} of disk, {self.home} has "
                f"{megabytes(free)} free; make room or set CARPOOL_HOME to another disk"
            )

    def content_hash(self, path: Path) -> str:
        """SHA-256 of a file's bytes, remembered until its size or mtime changes."""
        with self._explained(path):
            status = path.stat()
            key = [str(path.resolve()), status.st_size, status.st_mtime_ns, status.st_ino]
        note = self.home / "hashes" / hashlib.sha256(str(key[0]).encode()).hexdigest()
        try:
            known = read_json(note, default={})
        except BadJSON:
            known = {}
        if known.get("key") == key:
            return str(known["sha256"])
        with self._explained(path):
            sha256 = hash_file(path)
        # Without the note the next start hashes again; a read-only cache still serves.
        with suppress(OSError):
            note.parent.mkdir(parents=True, exist_ok=True)
            draft = note.with_name(f"{TEMPORARY}{note.name}-{os.getpid()}")
            draft.write_text(json.dumps({"key": key, "sha256": sha256}))
            draft.rename(note)
        return sha256

    @contextmanager
    def _explained(self, path: Path | None = None) -> Iterator[None]:
        """Turn an `OSError` into a `CacheError` that says what to do."""
        try:
            yield
        except OSError as error:
            if path is not None and error.errno not in (errno.ENOSPC, errno.EDQUOT):
                raise CacheError(f"{path}: cannot be read: {error.strerror}") from None
            raise CacheError(self._advice(error)) from None

    def _advice(self, error: OSError) -> str:
        place = f"the model cache {self.home}"
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            return f"no space left for {place}; make room or set CARPOOL_HOME to another disk"
        reason = error.strerror or str(error)
        return f"cannot use {place}: {reason}; set CARPOOL_HOME to a folder you can write to"


def hash_file(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def disk_bytes(path: Path) -> int:
    """The size of a file, or of all files in a folder; 0 for what does not exist."""
    if path.is_file():
        return path.stat().st_size
    return sum(file.stat().st_size for file in path.rglob("*") if file.is_file())


def megabytes(num_bytes: int) -> str:
    return f"{num_bytes / 1e6:,.0f} MB"


def _delete(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def _sync(path: Path) -> None:
    if path.is_dir():
        for child in path.iterdir():
            _sync(child)
    _sync_one(path)


def _sync_one(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)

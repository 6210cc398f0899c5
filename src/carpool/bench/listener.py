"""Which process of this machine listens on a port, where the system tells (Linux)."""

from pathlib import Path

_LISTEN = "0A"
"""A state in /proc/net/tcp, see Documentation/networking/proc_net_tcp of Linux."""


def listening_pid(port: int, proc: Path = Path("/proc")) -> int | None:
    """The first one found; None where there is none, or it is not ours to see."""
    inodes = _inodes(port, proc)
    if not inodes:
        return None
    wanted = {f"socket:[{inode}]" for inode in inodes}
    for folder in sorted(proc.glob("[0-9]*"), key=lambda path: int(path.name)):
        if _has_one_of(folder / "fd", wanted):
            return int(folder.name)
    return None


def _inodes(port: int, proc: Path) -> set[str]:
    found = set()
    for name in ("tcp", "tcp6"):
        try:
            lines = (proc / "net" / name).read_text(encoding="ascii").splitlines()[1:]
        except OSError:
            continue
        for fields in map(str.split, lines):
            if fields[3] == _LISTEN and int(fields[1].rpartition(":")[2], 16) == port:
                found.add(fields[9])
    return found


def _has_one_of(folder: Path, wanted: set[str]) -> bool:
    try:
        return any(link.readlink().as_posix() in wanted for link in folder.iterdir())
    except OSError:
        return False

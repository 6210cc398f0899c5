"""Gives the system back the memory of a file that has been read into another form."""

import ctypes
import mmap
from pathlib import Path

_MAPS = Path("/proc/self/maps")


def forget_pages(path: Path) -> None:
    """Drop this process's pages of `path` where it is mapped; what is read again comes back.

    OpenVINO maps the weights and packs most of them into memory of its own, once; the pages
    of the file would stay resident, as much again. Only Linux tells where a file is mapped.
    """
    if not _MAPS.is_file():
        return
    madvise = ctypes.CDLL(None, use_errno=True).madvise
    name = str(path.resolve())
    for line in _MAPS.read_text().splitlines():
        addresses, permissions, *_, mapped = line.split(None, 5)
        # What was written to a private mapping would be lost.
        if mapped == name and "w" not in permissions:
            begin, end = (int(address, 16) for address in addresses.split("-"))
            madvise(ctypes.c_void_p(begin), ctypes.c_size_t(end - begin), mmap.MADV_DONTNEED)

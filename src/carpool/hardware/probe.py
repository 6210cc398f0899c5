"""This machine as a device: its GPUs by what their drivers say, else its CPU and memory."""

import csv
import platform
import subprocess
from collections import Counter
from dataclasses import replace
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

from carpool.hardware.device import Device, UnknownDevice, find_devices
from carpool.hardware.host_memory import available_bytes

_NVIDIA = ("nvidia-smi", "--query-gpu=name,memory.total", "--format=csv,noheader,nounits")
_ROCM = ("rocm-smi", "--showproductname", "--showmeminfo", "vram", "--csv")
_ROCM_NAMES = ("Card Series", "Card series", "Card Model", "Card model")
GIB = 2**30
CPU_BANDWIDTH_GBS = 51.2
"""Two channels of DDR4-3200: assumed of a CPU that nobody measured."""


def probe() -> tuple[Device, int]:
    """The device and how many of it there are: of several kinds, the one there is most of.

    Asks NVIDIA's driver through nvidia-ml-py where that is installed, else through its tool,
    then AMD's tool, then macOS. Raises `UnknownDevice` for a GPU without figures in the
    catalogue.
    """
    if gpus := _nvml() or _nvidia_smi() or _rocm_smi():
        (name, gib), count = Counter(gpus).most_common(1)[0]
        return _gpu(name, gib), count
    is_apple = platform.system() == "Darwin" and platform.machine() == "arm64"
    if is_apple and (chip := _lines(("/usr/sbin/sysctl", "-n", "machdep.cpu.brand_string"))):
        return _apple(chip[0]), 1
    return this_cpu(), 1


class Gpu(NamedTuple):
    """As a driver tells it."""

    name: str
    gib: float


def _nvml() -> list[Gpu]:
    """Also where a container has the driver's library and not its tool."""
    if find_spec("pynvml") is None:
        return []
    nvml: Any = import_module("pynvml")
    try:
        nvml.nvmlInit()
    except nvml.NVMLError:
        return []
    try:
        handles = [nvml.nvmlDeviceGetHandleByIndex(n) for n in range(nvml.nvmlDeviceGetCount())]
        return [
            Gpu(_text(nvml.nvmlDeviceGetName(each)), nvml.nvmlDeviceGetMemoryInfo(each).total / GIB)
            for each in handles
        ]
    except nvml.NVMLError:
        return []
    finally:
        nvml.nvmlShutdown()


def _text(name: str | bytes) -> str:
    """Older versions of nvidia-ml-py give bytes."""
    return name.decode() if isinstance(name, bytes) else name


def _nvidia_smi() -> list[Gpu]:
    """Leaves out what has no memory of its own to tell of ("[N/A]", on unified memory)."""
    pairs = [line.rpartition(",")[::2] for line in _lines(_NVIDIA)]
    return [Gpu(name.strip(), float(mib) / 1024) for name, mib in pairs
            if mib.strip().isdecimal()]  # fmt: skip


def _rocm_smi() -> list[Gpu]:
    """Columns differ between versions: of names, the one that says which product it is."""
    rows = csv.DictReader(line for line in _lines(_ROCM) if not line.startswith("WARNING"))
    gpus = []
    for row in rows:
        sizes = [value for key, value in row.items() if key and "total memory" in key.lower()]
        names = [row[key] for key in _ROCM_NAMES if row.get(key)]
        if names and sizes and str(sizes[0]).isdecimal():
            gpus.append(Gpu(names[0], int(sizes[0]) / GIB))
    return gpus


def this_cpu() -> Device:
    """What memory is free now; the bandwidth of a small desktop."""
    name = _cpu_field("model name") or platform.machine() or "CPU"
    return Device(
        name=f"this machine ({name})",
        vendor="CPU",
        kind="cpu",
        bandwidth_gbs=CPU_BANDWIDTH_GBS,
        engine_gib=available_bytes() / 2**30,
        note="BF16" if has_bf16() else None,
        sources=(("engine_gib", "free memory now"), ("bandwidth_gbs", "assumed")),
    )


def _gpu(name: str, gib: float) -> Device:
    found = find_devices(name)
    near = [
        device for device in found if abs((device.driver_gib or device.nominal_gb or 0) - gib) < 2
    ]
    if not near:
        raise UnknownDevice(
            f"this machine's GPU {name!r} ({gib:.1f} GiB) is not in the catalogue; give --gpu with "
            "a device like it, or --gpu-memory and --bandwidth"
        )
    return replace(near[0], driver_gib=gib, engine_gib=None)


def _apple(chip: str) -> Device:
    gib = available_bytes() * 2 / 2**30
    near = sorted(find_devices(chip), key=lambda device: abs((device.nominal_gb or 0) - gib))
    if not near:
        raise UnknownDevice(f"{chip} is not in the catalogue; give --gpu with a chip like it")
    return replace(near[0], driver_gib=gib * 0.75, engine_gib=None)


def has_bf16() -> bool:
    """Whether this processor multiplies bf16 itself, as OpenVINO asks for a bf16 KV cache."""
    return not {"avx512_bf16", "amx_bf16"}.isdisjoint(_cpu_field("flags").split())


def _cpu_field(name: str, cpuinfo: Path = Path("/proc/cpuinfo")) -> str:
    """The first of its kind; empty where there is none (macOS)."""
    if not cpuinfo.is_file():
        return ""
    for line in cpuinfo.read_text(encoding="utf-8", errors="replace").splitlines():
        if line.startswith(name):
            return line.partition(":")[2].strip()
    return ""


def _lines(command: tuple[str, ...]) -> list[str]:
    """What a tool prints; nothing where it is not there or finds nothing."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True)  # noqa: S603
    except (OSError, subprocess.SubprocessError):
        return []
    return [line for line in done.stdout.splitlines() if line.strip()]

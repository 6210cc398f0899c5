"""This machine as a device: its GPUs by what their drivers say, else its CPU and memory."""

import platform
import subprocess
from dataclasses import replace
from pathlib import Path

from carpool.hardware.device import Device, UnknownDevice, find_devices
from carpool.hardware.host_memory import available_bytes

_NVIDIA = ("nvidia-smi", "--query-gpu=name,memory.total", "--format=csv,noheader,nounits")
_ROCM = ("rocm-smi", "--showproductname", "--showmeminfo", "vram", "--csv")
CPU_BANDWIDTH_GBS = 51.2
"""Two channels of DDR4-3200: assumed of a CPU that nobody measured."""


def probe() -> tuple[Device, int]:
    """The device and how many of it there are. Raises `UnknownDevice` for a GPU without
    figures in the catalogue."""
    if rows := _lines(_NVIDIA):
        name, _, mebibytes = rows[0].rpartition(",")
        return _gpu(name.strip(), float(mebibytes) / 1024), len(rows)
    if rows := [row for row in _lines(_ROCM) if row.startswith("card")]:
        fields = rows[0].split(",")
        size = next((float(f) for f in fields if f.isdigit() and int(f) > 2**30), 0.0)
        name = next((f for f in fields if "MI" in f or "Radeon" in f or "RX" in f), rows[0])
        return _gpu(name, size / 2**30), len(rows)
    is_apple = platform.system() == "Darwin" and platform.machine() == "arm64"
    if is_apple and (chip := _lines(("/usr/sbin/sysctl", "-n", "machdep.cpu.brand_string"))):
        return _apple(chip[0]), 1
    return this_cpu(), 1


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

"""This machine as a device, by what the drivers' own tools print."""

import sys
from pathlib import Path

import pytest

from carpool.hardware.device import UnknownDevice
from carpool.hardware.probe import probe

NVML = """
from types import SimpleNamespace
class NVMLError(Exception): pass
def nvmlInit(): pass
def nvmlShutdown(): pass
def nvmlDeviceGetCount(): return 3
def nvmlDeviceGetHandleByIndex(index): return index
def nvmlDeviceGetName(handle): return b"NVIDIA GeForce RTX 4090"
def nvmlDeviceGetMemoryInfo(handle): return SimpleNamespace(total=24564 * 2**20)
"""


@pytest.fixture
def nvidia_smi(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Puts a program of that name where it is found, which prints `lines`."""

    def install(*lines: str) -> None:
        program = tmp_path / "nvidia-smi"
        program.write_text("#!/bin/sh\n" + "\n".join(f"echo '{line}'" for line in lines))
        program.chmod(0o755)
        monkeypatch.setenv("PATH", f"{tmp_path}:/bin:/usr/bin")

    return install


def test_gpus_are_found_by_name_and_memory(nvidia_smi) -> None:
    nvidia_smi("NVIDIA GeForce RTX 4090, 24564", "NVIDIA GeForce RTX 4090, 24564")
    device, count = probe()
    assert (device.name, count) == ("RTX 4090", 2)
    assert device.usable_gib == (pytest.approx(24564 / 1024 * 0.985), "driver")


def test_the_memory_tells_variants_apart(nvidia_smi) -> None:
    nvidia_smi("NVIDIA A100-SXM4-40GB, 40960")
    assert probe()[0].name == "A100 SXM4 40GB"


def test_a_gpu_without_figures_is_named(nvidia_smi) -> None:
    nvidia_smi("NVIDIA GeForce RTX 9999, 99999")
    with pytest.raises(UnknownDevice, match=r"'NVIDIA GeForce RTX 9999' \(97\.7 GiB\).*--gpu"):
        probe()


def test_of_several_kinds_it_is_the_one_there_is_most_of(nvidia_smi) -> None:
    nvidia_smi("Tesla T4, 15360", "NVIDIA L4, 23034", "NVIDIA L4, 23034")
    device, count = probe()
    assert (device.name, count) == ("L4", 2)


def test_amds_tool_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "rocm-smi"
    size = 192 * 2**30 - 16 * 2**20
    program.write_text(
        "#!/bin/sh\necho 'WARNING: AMD GPU device(s) is/are in a low-power state.'\n"
        "echo 'device,VRAM Total Memory (B),VRAM Total Used Memory (B),Card Series,Card Model,"
        "Card Vendor,Card SKU'\n"
        f'for n in 0 1; do echo "card$n,{size},297000960,AMD Instinct MI300X OAM,0x74a1,'
        'Advanced Micro Devices Inc. [AMD/ATI],M3000100"; done\n'
    )
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin:/usr/bin")
    device, count = probe()
    assert (device.name, count) == ("MI300X", 2)
    assert device.driver_gib == pytest.approx(192, abs=0.1)


def test_nvidia_ml_py_is_asked_first_where_it_is_installed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "pynvml.py").write_text(NVML)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delitem(sys.modules, "pynvml", raising=False)
    try:
        device, count = probe()
    finally:
        sys.modules.pop("pynvml", None)
    assert (device.name, count) == ("RTX 4090", 3)


def test_without_a_gpu_it_is_the_processor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    device, count = probe()
    assert count == 1
    assert device.usable_gib[0] > 0

"""This machine as a device, by what the drivers' own tools print."""

from pathlib import Path

import pytest

from carpool.hardware.device import UnknownDevice
from carpool.hardware.probe import probe


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


def test_without_a_gpu_it_is_the_processor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    device, count = probe()
    assert count == 1
    assert device.usable_gib[0] > 0

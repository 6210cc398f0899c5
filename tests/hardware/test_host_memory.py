"""What memory there is to take: the machine's, or what a container's limit leaves."""

import os
import sys

import pytest

from carpool.hardware.host_memory import available_bytes, resident_bytes, total_bytes

GIB = 2**30
MEMINFO = """MemTotal:       32000000 kB
MemFree:         1000000 kB
MemAvailable:    8388608 kB
Buffers:          500000 kB
"""


@pytest.fixture
def meminfo(tmp_path):
    path = tmp_path / "meminfo"
    path.write_text(MEMINFO)
    return path


@pytest.fixture
def cgroup(tmp_path):
    """Write a container's figures; returns their folder."""

    def write(**figures):
        folder = tmp_path / "cgroup"
        folder.mkdir()
        for name, text in figures.items():
            (folder / f"memory.{name}").write_text(f"{text}\n")
        return folder

    return write


def test_it_is_what_the_kernel_calls_available(meminfo, tmp_path):
    assert available_bytes(meminfo, tmp_path / "none") == 8 * GIB


def test_a_containers_limit_counts_less_what_it_uses(meminfo, cgroup):
    assert available_bytes(meminfo, cgroup(max=4 * GIB, current=GIB)) == 3 * GIB


def test_a_limit_above_what_the_machine_has_changes_nothing(meminfo, cgroup):
    assert available_bytes(meminfo, cgroup(max=64 * GIB, current=GIB)) == 8 * GIB


def test_a_container_without_a_limit_has_the_machine(meminfo, cgroup):
    assert available_bytes(meminfo, cgroup(max="max", current=GIB)) == 8 * GIB


def test_a_container_over_its_limit_has_nothing_left(meminfo, cgroup):
    assert available_bytes(meminfo, cgroup(max=GIB, current=2 * GIB)) == 0


def test_a_limit_alone_is_taken_as_free(meminfo, cgroup):
    assert available_bytes(meminfo, cgroup(max=2 * GIB)) == 2 * GIB


def test_a_kernel_that_does_not_say_is_named(tmp_path):
    path = tmp_path / "meminfo"
    path.write_text("MemTotal: 5 kB\n")
    with pytest.raises(ValueError, match="MemAvailable"):
        available_bytes(path, tmp_path)


@pytest.mark.skipif(not sys.platform.startswith(("linux", "darwin")), reason="no such figures")
def test_without_the_kernels_figures_it_is_half_of_the_physical_memory(tmp_path):
    assert available_bytes(tmp_path / "none", tmp_path) > 64 * 2**20


def test_this_machine_has_some():
    assert available_bytes() > 64 * 2**20


def test_the_total_is_the_machines_or_the_containers(meminfo, tmp_path, cgroup):
    assert total_bytes(meminfo, tmp_path / "none") == 32_000_000 * 1024
    assert total_bytes(meminfo, cgroup(max=4 * GIB, current=GIB)) == 4 * GIB


def test_a_process_is_counted_with_its_children(tmp_path):
    page = os.sysconf("SC_PAGE_SIZE")
    for pid, children, pages in ((10, "11 12", 5), (11, "", 7), (12, "", 11)):
        (tmp_path / str(pid) / "task" / str(pid)).mkdir(parents=True)
        (tmp_path / str(pid) / "statm").write_text(f"100 {pages} 1 1 0 1 0\n")
        (tmp_path / str(pid) / "task" / str(pid) / "children").write_text(children)
    assert resident_bytes(10, tmp_path) == 23 * page
    assert resident_bytes(99, tmp_path) == 0

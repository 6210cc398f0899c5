"""Start-up reports as they come: null where nothing was stated."""

import json
from pathlib import Path

import pytest

from benchmarks.planner import REPORTS, last_line, score
from benchmarks.planner_reports import make_case, memory_gib, read_reports
from carpool.planning.engine_kind import EngineKind

FIELDS = ("quantization", "max_num_seqs", "gpu_memory_utilization", "engine_version", "date",
          "other_flags", "kv_cache_dtype", "gpu_memory_gib", "max_model_len", "enforce_eager",
          "notes", "num_gpus", "tensor_parallel", "pipeline_parallel")  # fmt: skip
FIGURES = ("weights_gib", "kv_cache_gib", "kv_tokens", "num_blocks", "max_concurrency")


def test_null_is_the_same_as_left_out(tmp_path: Path) -> None:
    reports = read_reports(REPORTS)
    path = tmp_path / "reports.jsonl"
    with path.open("w") as file:
        for report in reports:
            figures = dict.fromkeys(FIGURES) | report["reported"]
            print(json.dumps(dict.fromkeys(FIELDS) | report | {"reported": figures}), file=file)
    assert read_reports(path) == reports


@pytest.mark.parametrize("line", ["{", "[]", "{}", '{"reported": 1}'])
def test_what_is_no_report_is_named_by_its_line(tmp_path: Path, line: str) -> None:
    path = tmp_path / "reports.jsonl"
    path.write_text(f"\n{line}\n")
    with pytest.raises(SystemExit, match=r"reports\.jsonl:2: no"):
        read_reports(path)


@pytest.mark.parametrize(
    ("gpu", "gib"),
    [
        ("NVIDIA H100 80GB", 79.2),
        ("Tesla V100-SXM2-32GB", 31.4),
        ("96GB class (94.87 free)", 94.87),
        ("NVIDIA A40-48Q", 44.5),
        ("CPU", None),
        (None, None),
    ],
)
def test_the_memory_of_a_device_by_its_name(gpu: str | None, gib: float | None) -> None:
    found = memory_gib({"gpu": gpu})
    assert found == (None if gib is None else pytest.approx(gib, abs=0.1))


def test_a_report_becomes_settings() -> None:
    report = {
        "id": "x", "engine": "vllm", "engine_version": "0.19.0", "quantization": "awq",
        "arch_model": "Qwen/Qwen3-8B", "gpu": "NVIDIA L4", "max_num_seqs": 64, "reported": {},
    }  # fmt: skip
    case = make_case(report)
    assert case.settings.engine is EngineKind.VLLM
    assert case.settings.version == (0, 19, 0)
    assert case.format.name == "awq"
    assert case.settings.max_num_seqs == 64


def test_the_last_line_has_an_entry_for_every_engine() -> None:
    line = last_line(score([]))
    for engine in ("vllm", "sglang", "llama_cpp"):
        assert line[engine]["kv_tokens"] == {
            "median_abs_error": None, "p90_abs_error": None, "groups": 0, "unpredicted": 0,
        }  # fmt: skip
    assert line["failed_starts"]["recall"] is None

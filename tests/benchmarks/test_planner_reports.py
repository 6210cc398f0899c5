"""Start-up reports as they come: null where nothing was stated."""

import json
from pathlib import Path

import pytest

from benchmarks.planner import REPORTS, last_line, score
from benchmarks.planner_reports import Unpredicted, make_case, memory_gib, read_reports
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


@pytest.mark.parametrize(
    ("field", "value", "reason"),
    [
        ("max_model_len", "8k", "max_model_len is '8k'; it must be a number"),
        ("gpu_memory_utilization", True, "gpu_memory_utilization is True; it must be a number"),
        ("engine", None, "no engine named"),
        ("gpu", 4090, "gpu is 4090; it must be text"),
        ("other_flags", [], r"other_flags is \[\]; it must be an object"),
        ("other_flags", {"n_ctx": "4k"}, "n_ctx is '4k'; it must be a number"),
        ("reported", {"kv_tokens": "1,000"}, "kv_tokens is '1,000'; it must be a number"),
    ],
)
def test_a_field_that_cannot_be_read_is_named(field: str, value: object, reason: str) -> None:
    report = {"id": "x", "engine": "vllm", "arch_model": "Qwen/Qwen3-8B", "reported": {}}
    stated = {k: v for k, v in (report | {field: value}).items() if v is not None}
    with pytest.raises(Unpredicted, match=reason):
        make_case(stated)
    rows = [row for rows in score([stated]).unpredicted.values() for row in rows]
    assert [id for id, _ in rows] == ["x"]


def test_the_last_line_has_an_entry_for_every_engine() -> None:
    line = last_line(score([]))
    for engine in ("vllm", "sglang", "llama_cpp"):
        assert line[engine]["kv_tokens"] == {
            "median_abs_error": None, "p90_abs_error": None, "groups": 0, "unpredicted": 0,
        }  # fmt: skip
    assert line["failed_starts"]["recall"] is None

"""Start-up reports of engines: what people saw, as settings for the planner."""

import ast
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from carpool.errors import CarpoolError
from carpool.hardware.device import find_devices
from carpool.models.layer_cache import StateCache
from carpool.models.published_models import find_published
from carpool.models.shape import ModelShape
from carpool.models.weight_format import WeightFormat, find_format
from carpool.planning.engine_kind import EngineKind, Version, parse_engine, parse_version
from carpool.planning.figure import GIB
from carpool.planning.settings import Settings

# (first month or day, version) of vLLM, for reports that give a date and no version.
# https://github.com/vllm-project/vllm/releases; of May 2026, as reports with both show.
VLLM_RELEASES: list[tuple[str, Version]] = [
    ("2023-06", (0, 1)), ("2024-03", (0, 4)), ("2024-06", (0, 5)), ("2024-09", (0, 6)),
    ("2025-01", (0, 7)), ("2025-03", (0, 8)), ("2025-05", (0, 9)), ("2025-07", (0, 10)),
    ("2025-10", (0, 11)), ("2025-12", (0, 12)), ("2026-01", (0, 14)), ("2026-02", (0, 16)),
    ("2026-03", (0, 18)), ("2026-04", (0, 19)), ("2026-05", (0, 20)), ("2026-05-05", (0, 20, 1)),
    ("2026-05-07", (0, 21)), ("2026-08", (0, 24)),
]  # fmt: skip


DTYPES = ("float32", "float16", "bfloat16")


class Unpredicted(Exception):
    """What a report does not say, or the planner does not understand."""


@dataclass(frozen=True, slots=True)
class Case:
    """A report that can be planned for; `memory_gib` is of one device, None if unknown."""

    id: str
    group: str
    architecture: str
    shape: ModelShape
    format: WeightFormat
    settings: Settings
    memory_gib: float | None
    device: str
    reported: dict[str, Any]
    failed: bool
    num_devices: int
    weights_on_device: bool
    """False where part of the weights stays in the host's memory."""
    unstated: tuple[str, ...]
    """What the bytes of a token follow from and the report does not state."""


def read_reports(path: Path) -> list[dict[str, Any]]:
    """One report a line; what is null there is not stated. Raises SystemExit for other files."""
    reports = []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        try:
            report = json.loads(line) if line.strip() else None
        except ValueError as error:
            raise SystemExit(f"{path}:{number}: not valid JSON ({error})") from None
        if report is None:
            continue
        if not isinstance(report, dict) or not isinstance(report.get("reported"), dict):
            raise SystemExit(f"{path}:{number}: no report: it must be an object with 'reported'")
        stated = {key: value for key, value in report.items() if value is not None}
        figures = report["reported"].items()
        stated["reported"] = {key: value for key, value in figures if value is not None}
        reports.append(stated)
    return reports


def did_fail(report: dict[str, Any]) -> bool:
    tagged = "startup_failed" in (report.get("tags") or [])
    return bool(report.get("failed")) or tagged


_NUMBERS = (
    *("gpu_memory_gib", "num_gpus", "tensor_parallel", "pipeline_parallel", "max_model_len"),
    *("gpu_memory_utilization", "max_num_seqs", "max_num_batched_tokens"),
)
_TEXTS = (
    *("engine", "engine_version", "date", "model", "arch_model", "quantization", "dtype", "gpu"),
    *("kv_cache_dtype", "notes"),
)
_NUMBERS_OF_FLAGS = (
    *("max_total_tokens", "mem_fraction_static", "n_ubatch", "n_ctx", "mtp_tokens", "lora_rank"),
    *("dcp", "decode_context_parallel_size"),
)
FIGURES = ("weights_gib", "kv_cache_gib", "kv_tokens", "num_blocks", "block_size",
           "max_concurrency", "activation_gib", "non_torch_gib", "cuda_graph_gib")  # fmt: skip


def _check_fields(report: dict[str, Any]) -> None:
    """Raises `Unpredicted` for a field that is not what it must be."""
    flags = report.get("other_flags", {})
    if not isinstance(flags, dict):
        raise Unpredicted(f"other_flags is {flags!r}; it must be an object")
    assumed = report.get("assumed_unless_in_source", [])
    if not isinstance(assumed, list):
        raise Unpredicted(f"assumed_unless_in_source is {assumed!r}; it must be a list")
    for values, names in (
        (report, _NUMBERS), (flags, _NUMBERS_OF_FLAGS), (report["reported"], FIGURES)
    ):  # fmt: skip
        for name in names:
            value = values.get(name, 0)
            if isinstance(value, bool) or not isinstance(value, int | float | None):
                raise Unpredicted(f"{name} is {value!r}; it must be a number")
    for name in _TEXTS:
        if not isinstance(report.get(name, ""), str):
            raise Unpredicted(f"{name} is {report[name]!r}; it must be text")
    if "engine" not in report:
        raise Unpredicted("no engine named")


def make_case(report: dict[str, Any]) -> Case:
    """Raises `Unpredicted` with the reason."""
    _check_fields(report)
    shape, group = _model(report)
    engine = _engine(report)
    if _draft_tokens(report.get("other_flags") or {}) and not shape.num_draft_layers:
        raise Unpredicted("a draft model that the report does not describe")
    return Case(
        id=str(report.get("id")),
        group=f"{group} on {report.get('gpu') or 'unknown'}",
        architecture=shape.attention_class,
        shape=replace(shape, dtype=report["dtype"]) if report.get("dtype") in DTYPES else shape,
        format=_format(report, shape),
        settings=_settings(report, engine),
        memory_gib=memory_gib(report),
        device=report.get("gpu") or "unknown",
        reported=report["reported"],
        failed=did_fail(report),
        num_devices=report.get("num_gpus") or 1,
        weights_on_device=_is_on_device(report),
        unstated=tuple(_unstated(report, shape)),
    )


def _model(report: dict[str, Any]) -> tuple[ModelShape, str]:
    name = report.get("arch_model") or report.get("model")
    if not name:
        raise Unpredicted("no model named")
    published = find_published(name)
    if published is None:
        raise Unpredicted(f"architecture of {name!r} is not in the catalogue")
    return published.shape, published.id


def _engine(report: dict[str, Any]) -> EngineKind:
    try:
        return parse_engine(report["engine"].split(" (")[0])
    except CarpoolError:
        raise Unpredicted(f"engine {report['engine']!r} is not planned for") from None


def _format(report: dict[str, Any], shape: ModelShape) -> WeightFormat:
    """By what the report says of the quantisation, then by the model's name."""
    said = str(report.get("quantization") or "")
    for text in (said, str(report.get("model") or "")):
        if (name := _format_name(text)) and (text == said or said):
            if name == "w4a16" and shape.model_type.startswith("kimi_k2"):
                name = "int4-experts"
            return find_format(name)
    if said:
        raise Unpredicted(f"weight format {said!r} is not known")
    dtype = report.get("dtype")
    return find_format(dtype if dtype in ("float32",) else "bf16")


_FORMAT_WORDS = [
    (r"q(\d)_k_xl", "Q4_K_M"), (r"\bq2_k", "Q2_K"), (r"iq4_xs", "IQ4_XS"), (r"iq4_k", "Q4_K_S"),
    (r"iq3", "IQ3_M"), (r"q4_k_m", "Q4_K_M"), (r"q5_k", "Q5_K_M"), (r"q6_k", "Q6_K"),
    (r"q8_0", "Q8_0"), (r"q4_0", "Q4_0"), (r"q4_1", "Q4_1"), (r"\bbf16\b", "BF16"),
    (r"mxfp4", "mxfp4"), (r"nvfp4", "nvfp4"), (r"w4a16", "w4a16"), (r"w8a8", "int8"),
    (r"fp8", "fp8"), (r"awq", "awq"), (r"gptq|auto.?round", "gptq"),
    (r"bitsandbytes|bnb", "bnb-nf4"), (r"experts_int8", "int8-experts"),
    (r"int8", "int8"), (r"int4|4-bit|wna16", "w4a16"),
]  # fmt: skip


def _format_name(text: str) -> str | None:
    for pattern, name in _FORMAT_WORDS:
        if re.search(pattern, text, re.IGNORECASE):
            return name
    return None


def _settings(report: dict[str, Any], engine: EngineKind) -> Settings:
    flags = report.get("other_flags") or {}
    version = parse_version(report.get("engine_version"))
    if engine is EngineKind.VLLM and version is None:
        version = _version_by_date(report.get("date"))
    batch = report.get("max_num_batched_tokens")
    share = report.get("gpu_memory_utilization")
    kv_tokens = flags.get("max_total_tokens")
    if engine is EngineKind.SGLANG:
        share = flags.get("mem_fraction_static")
    if engine is EngineKind.LLAMA_CPP:
        batch, share = flags.get("n_ubatch"), None
        kv_tokens = flags.get("n_ctx") or report.get("max_model_len")
    return Settings(
        engine=engine,
        version=version,
        max_model_len=report.get("max_model_len"),
        max_num_seqs=report.get("max_num_seqs"),
        max_num_batched_tokens=batch,
        memory_share=share,
        kv_dtype=_kv_dtype(report.get("kv_cache_dtype")),
        tensor_parallel=report.get("tensor_parallel") or 1,
        pipeline_parallel=report.get("pipeline_parallel") or 1,
        data_parallel=_data_parallel(flags),
        enforce_eager=bool(report.get("enforce_eager")),
        num_draft_tokens=_draft_tokens(flags),
        flash_attention=bool(flags.get("flash_attn", 1)),
        kv_tokens=kv_tokens,
        prefix_caching=bool(flags.get("enable_prefix_caching", True)),
        data_parallel_attention=bool(flags.get("dp_attention")),
        lora_rank=int(flags.get("lora_rank") or 0),
        custom_all_reduce=not flags.get("disable_custom_all_reduce"),
        latent_cache=_has_latents(report),
        context_parallel=int(flags.get("dcp") or flags.get("decode_context_parallel_size") or 1),
    )


def _unstated(report: dict[str, Any], shape: ModelShape) -> Iterator[str]:
    """Where layers keep different things, vLLM's tokens depend on the longest sequence, on the
    tokens in flight (windows) and on the tokens speculated ahead (states)."""
    flags = report.get("other_flags") or {}
    assumed = report.get("assumed_unless_in_source") or []
    yield from (name for name in ("kv_cache_dtype", "tensor_parallel") if name in assumed)
    kept = [group.cache for group in shape.caches]
    if len(kept) > 1:
        yield from (name for name in ("max_model_len", "max_num_batched_tokens")
                    if report.get(name) is None)  # fmt: skip
    has_states = any(isinstance(cache, StateCache) for cache in kept)
    said = str(flags.get("speculative") or flags.get("mtp_tokens") or "")
    if has_states and not re.search(r"\d", said):
        yield "tokens speculated ahead"
    if has_states and "inferred" in str(report.get("notes")):
        yield "its flags, inferred from another report"


def _version_by_date(date: str | None) -> Version | None:
    found = [version for month, version in VLLM_RELEASES if (date or "") >= month]
    return found[-1] if found else None


def _has_latents(report: dict[str, Any]) -> bool:
    """GGUF files from before llama.cpp knew MLA keep the keys and values of all heads."""
    flags = report.get("other_flags") or {}
    return flags.get("mla") != 0 and "non-MLA" not in str(report.get("notes")).replace("Non", "non")


def _data_parallel(flags: dict[str, Any]) -> int:
    """Of vLLM's own line of arguments that are no defaults."""
    try:
        asked = ast.literal_eval(flags.get("non_default_args") or "{}")
    except (ValueError, SyntaxError):
        return 1
    return int(asked.get("data_parallel_size") or 1)


def _kv_dtype(text: str | None) -> str:
    """Keys and values of two types are written "K q4_0 / V f16"."""
    if not text or text == "auto":
        return "auto"
    if two := re.fullmatch(r"K (\w+) / V (\w+)", text):
        return f"{two[1]}/{two[2]}"
    if re.search(r"8-bit", text):
        return "int8"
    return text.split()[0]


def _draft_tokens(flags: dict[str, Any]) -> int:
    text = str(flags.get("speculative", ""))
    if re.search(r"dflash|eagle", text, re.IGNORECASE):
        raise Unpredicted(f"a draft model ({text}) that the report does not describe")
    if flags.get("mtp_tokens"):
        return int(flags["mtp_tokens"])
    if flags.get("mtp") or "mtp" in text.lower():
        found = re.search(r"n=(\d+)", text)
        return int(found[1]) if found else 1
    return 0


def memory_gib(report: dict[str, Any]) -> float | None:
    """Of one device: as the report says, else as the catalogue does where that is one figure,
    else by the size in its name."""
    if report.get("gpu_memory_gib"):
        return float(report["gpu_memory_gib"])
    name = str(report.get("gpu") or "")
    if found := re.search(r"([\d.]+) free", name):
        return float(found[1])
    plain = re.sub(r"\(.*?\)|-?SXM\d?-?|-\d+Q\b|PCIe|NVIDIA", " ", name)
    found = re.search(r"(\d+) ?GB", name)
    devices = [
        device
        for device in find_devices(plain)
        if not device.is_cpu and (not found or device.nominal_gb == float(found[1]))
    ]
    sizes = {round(device.usable_gib[0], 1) for device in devices}
    if sizes and max(sizes) - min(sizes) < 0.5:
        return max(sizes)
    if found:
        return 0.98 * float(found[1])
    return None


def _is_on_device(report: dict[str, Any]) -> bool:
    text = (report.get("notes") or "") + str(report.get("model") or "")
    is_cpu = report.get("gpu") == "CPU" or report.get("num_gpus") == 0
    return not is_cpu and not re.search(r"CPU|host|Rest of weights|GPU-resident", text)


def total_weight_bytes(case: Case) -> float | None:
    size = case.reported.get("weights_gib")
    return None if size is None else size * GIB

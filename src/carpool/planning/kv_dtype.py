"""What one element of a KV cache takes, by the name engines give its type."""

from typing import NamedTuple

from carpool.models.weight_format import dtype_bits
from carpool.planning.engine_kind import EngineKind
from carpool.planning.errors import PlanError

_BITS = {
    "fp32": 32.0, "f32": 32.0, "float32": 32.0,
    "bf16": 16.0, "fp16": 16.0, "f16": 16.0, "bfloat16": 16.0, "float16": 16.0,
    "fp8": 8.0, "fp8_e4m3": 8.0, "fp8_e5m2": 8.0, "int8": 8.0, "u8": 8.0, "8bit": 8.0,
    "q8_0": 8.5, "q5_1": 6.0, "q5_0": 5.5, "q4_1": 5.0, "q4_0": 4.5, "iq4_nl": 4.5,
    "int4": 4.0, "u4": 4.0,
}  # fmt: skip

_ENGINE_TYPES = {
    EngineKind.VLLM: (
        "auto", "bfloat16", "float16", "fp8", "fp8_e4m3", "fp8_e5m2", "int8_per_token_head",
        "fp8_per_token_head",
    ),
    EngineKind.SGLANG: ("auto", "bf16", "bfloat16", "fp8", "fp8_e4m3", "fp8_e5m2"),
    EngineKind.LLAMA_CPP: (
        "auto", "f32", "f16", "bf16", "q8_0", "q5_1", "q5_0", "q4_1", "q4_0", "iq4_nl",
    ),
    EngineKind.EMBEDDED: ("auto", "f32", "bf16", "f16", "u8"),
}  # fmt: skip
"""What their options take."""

_WITH_SCALES = "_per_token_head"
_SCALE_BYTES = 4.0
"""Of vLLM's types with a float32 scale for each token and head (pull request 38378)."""


class KVElement(NamedTuple):
    """Bytes of an element of the keys and of the values, and of the scale that each head's keys
    (and values) of a token have."""

    key: float
    value: float
    scale: float = 0.0

    @property
    def is_8_bit(self) -> bool:
        return self.key == self.value == 1.0


def kv_element(name: str, model_dtype: str) -> KVElement:
    """Of a type, or of two as "q8_0/q4_0", keys first. `auto` is the model's own type, 16 bits
    if that is a packed one. Raises `PlanError`."""
    keys, _, values = name.lower().partition("/")
    scale = _SCALE_BYTES if keys.endswith(_WITH_SCALES) else 0.0
    key = _bits(keys.removesuffix(_WITH_SCALES), model_dtype) / 8
    value = _bits(values, model_dtype) / 8 if values else key
    return KVElement(key, value, scale)


def check_kv_dtype(engine: EngineKind, name: str) -> None:
    """Raises `PlanError` for a type that the engine does not keep."""
    keys, _, values = name.lower().partition("/")
    known = _ENGINE_TYPES[engine]
    if values and engine is not EngineKind.LLAMA_CPP:
        raise PlanError(
            f"{engine} keeps keys and values in one type, not in {name!r}; give one of "
            f"{', '.join(known)}, or plan with --engine llama.cpp"
        )
    for part in filter(None, (keys, values)):
        if part not in known:
            raise PlanError(
                f"{engine} has no KV cache type {part!r}; give one of {', '.join(known)}"
            )


def _bits(name: str, model_dtype: str) -> float:
    if name == "auto":
        return float(dtype_bits(model_dtype))
    try:
        return _BITS[name]
    except KeyError:
        raise PlanError(
            f"KV cache type {name!r} is not known; give auto or one of {', '.join(_BITS)}, or one "
            "for keys and one for values like q8_0/q4_0"
        ) from None

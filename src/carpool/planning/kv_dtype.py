"""What one element of a KV cache takes, by the name engines give its type."""

from carpool.models.weight_format import dtype_bits
from carpool.planning.errors import PlanError

_BITS = {
    "fp32": 32.0, "f32": 32.0, "float32": 32.0,
    "bf16": 16.0, "fp16": 16.0, "f16": 16.0, "bfloat16": 16.0, "float16": 16.0,
    "fp8": 8.0, "fp8_e4m3": 8.0, "fp8_e5m2": 8.0, "int8": 8.0, "u8": 8.0, "8bit": 8.0,
    "q8_0": 8.5, "q5_1": 6.0, "q5_0": 5.5, "q4_1": 5.0, "q4_0": 4.5, "iq4_nl": 4.5,
    "int4": 4.0, "u4": 4.0,
}  # fmt: skip


def kv_bits(name: str, model_dtype: str) -> float:
    """`auto` is the model's own type, 16 bits if that is a packed one. Raises `PlanError`."""
    if name.lower() == "auto":
        return float(dtype_bits(model_dtype))
    try:
        return _BITS[name.lower()]
    except KeyError:
        raise PlanError(
            f"KV cache type {name!r} is not known; give auto or one of {', '.join(_BITS)}"
        ) from None

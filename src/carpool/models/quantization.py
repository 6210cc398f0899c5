"""How a checkpoint's weights are stored, from the quantization_config of its config.json."""

from collections.abc import Mapping

from carpool.models.config_fields import ConfigFields

_COMPRESSED: dict[tuple[object, object], str] = {
    (4, "int"): "w4a16",
    (8, "int"): "int8",
    (8, "float"): "fp8",
    (4, "float"): "nvfp4",
}
_MODELOPT = {"FP8": "fp8", "NVFP4": "nvfp4", "W4A16_AWQ": "awq", "FP8_PB_WO": "fp8"}


def quantization_of(config: ConfigFields) -> str | None:
    """What `find_format` takes; None where nothing is quantised.

    What is not understood comes back as it is written, for `find_format` to refuse by name:
    with headers of tensors at hand, nobody needs it.
    """
    quantization = config.inner("quantization_config")
    if quantization is None:
        return None
    method = (quantization.text("quant_method") or "").removeprefix("intel/")
    if method == "compressed-tensors":
        return _compressed(quantization)
    if method == "modelopt" or (not method and "quant_algo" in quantization):
        algorithm = quantization.text("quant_algo") or "without quant_algo"
        return _MODELOPT.get(algorithm, f"modelopt {algorithm}")
    if method == "bitsandbytes":
        return "bnb-int8" if quantization.flag("load_in_8bit") else "bnb-nf4"
    bits = quantization.optional("bits", "w_bit")
    if bits is None:
        return method or "unknown"
    group = quantization.values.get("group_size", quantization.values.get("q_group_size"))
    return f"{method}-int{bits}" + (f"-g{group}" if isinstance(group, int) else "")


def _compressed(quantization: ConfigFields) -> str:
    """https://github.com/neuralmagic/compressed-tensors: groups of layers, each with a scheme."""
    groups = quantization.values.get("config_groups")
    schemes = [
        group.get("weights")
        for group in (groups.values() if isinstance(groups, Mapping) else ())
        if isinstance(group, Mapping)
    ]
    kinds = {
        (scheme.get("num_bits"), scheme.get("type", "int"))
        for scheme in schemes
        if isinstance(scheme, Mapping)
    }
    if len(kinds) == 1 and (known := _COMPRESSED.get(next(iter(kinds)))):
        return known
    said = " + ".join(f"{kind}{bits}" for bits, kind in sorted(kinds, key=str))
    return f"compressed-tensors ({said or 'no config_groups'})"

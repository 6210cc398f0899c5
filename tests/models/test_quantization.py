"""What a quantization_config stands for; what is not understood is refused by its name."""

import pytest

from carpool.models.config_fields import ConfigFields
from carpool.models.quantization import quantization_of
from carpool.models.weight_format import UnknownFormat, find_format


def compressed(**weights: object) -> dict[str, object]:
    groups = {"group_0": {"targets": ["Linear"], "weights": weights}}
    return {"quant_method": "compressed-tensors", "config_groups": groups}


def stored_as(quantization: dict[str, object]) -> str:
    name = quantization_of(ConfigFields({"quantization_config": quantization}, "config.json"))
    assert name is not None
    return name


@pytest.mark.parametrize(
    ("quantization", "format", "bits"),
    [
        (compressed(num_bits=4, type="int", group_size=128), "w4a16", 4.125),
        (compressed(num_bits=8, type="float"), "fp8", 8.0),
        (compressed(num_bits=8, type="int"), "int8", 8.0),
        (compressed(num_bits=4, type="float", group_size=16), "nvfp4", 4.5),
        ({"quant_method": "awq", "bits": 4, "group_size": 128}, "awq", 4.156),
        ({"quant_method": "awq", "bits": 4, "group_size": 64}, "awq", 4.3125),
        ({"quant_method": "gptq", "bits": 8, "group_size": 128}, "gptq-int8", 8.19),
        ({"quant_method": "gptq", "bits": 3, "group_size": 128}, "gptq-int3", 3.15),
        ({"quant_method": "intel/auto-round", "bits": 4}, "gptq", 4.156),
        ({"quant_method": "bitsandbytes", "load_in_4bit": True}, "bnb-nf4", 4.127),
        ({"quant_method": "bitsandbytes", "load_in_8bit": True}, "int8", 8.0),
        ({"quant_method": "mxfp4"}, "mxfp4", 4.25),
        ({"quant_method": "fp8", "weight_block_size": [128, 128]}, "fp8", 8.0),
        ({"quant_method": "modelopt", "quant_algo": "NVFP4"}, "nvfp4", 4.5),
        ({"quant_method": "modelopt", "quant_algo": "FP8"}, "fp8", 8.0),
    ],
)
def test_the_format_is_read(quantization: dict[str, object], format: str, bits: float) -> None:
    found = find_format(stored_as(quantization))
    assert found.name == format
    assert found.bits == pytest.approx(bits, abs=0.05)


@pytest.mark.parametrize(
    ("quantization", "named"),
    [
        ({"quant_method": "aqlm"}, "aqlm"),
        ({"quant_method": "modelopt", "quant_algo": "MIXED_PRECISION"}, "MIXED_PRECISION"),
        (compressed(num_bits=2, type="int"), "int2"),
    ],
)
def test_what_is_not_understood_is_named(quantization: dict[str, object], named: str) -> None:
    with pytest.raises(UnknownFormat, match=named):
        find_format(stored_as(quantization))

"""What a token takes by the type of its cache: one for both, or one for keys and one for values."""

import pytest

from carpool.models.published_models import find_published
from carpool.planning.engine_kind import EngineKind
from carpool.planning.errors import PlanError
from carpool.planning.kv_pool import make_pool
from carpool.planning.settings import Settings, filled


def bytes_per_token(kv_dtype: str, engine: EngineKind = EngineKind.LLAMA_CPP) -> float:
    found = find_published("meta-llama/Llama-3.1-8B-Instruct")
    assert found is not None
    settings = Settings(engine=engine, kv_dtype=kv_dtype)
    filled_in = filled(settings, 2.0**34, "", found.shape.max_model_len)
    return make_pool(found.shape, filled_in, 2.0**33).bytes_per_token


@pytest.mark.parametrize(
    ("kv_dtype", "bits"),
    [("f16", 16), ("q8_0", 8.5), ("q8_0/q4_0", 6.5), ("q4_0/f16", 10.25), ("f16/f16", 16)],
)
def test_keys_and_values_may_have_types_of_their_own(kv_dtype: str, bits: float) -> None:
    assert bytes_per_token(kv_dtype) == pytest.approx(131_072 * bits / 16)


def test_a_scale_for_each_token_and_head_is_counted() -> None:
    with_scales = bytes_per_token("int8_per_token_head", EngineKind.VLLM)
    assert with_scales == 32 * 8 * 2 * (128 + 4)


def test_an_unknown_type_is_named_with_those_that_are_known() -> None:
    with pytest.raises(PlanError, match=r"KV cache type 'q9' is not known; give auto or one of"):
        bytes_per_token("f16/q9")

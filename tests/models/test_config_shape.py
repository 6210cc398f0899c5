"""Shapes from configs: what is damaged is named, never a traceback, never a guess."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from carpool.models.config_fields import UnknownShape
from carpool.models.config_shape import shape_from_config
from carpool.models.layer_cache import AttentionCache
from carpool.models.published_models import _entries  # the configs themselves

CONFIGS = {name: entry["config"] for name, entry in _entries().items()}
STRANGE = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-3, 3),
    st.text(max_size=3),
    st.lists(st.integers(-1, 3), max_size=3),
    st.dictionaries(st.text(max_size=3), st.integers(), max_size=2),
    st.floats(),
)


@given(st.sampled_from(sorted(CONFIGS)), st.data())
def test_a_damaged_field_is_refused_or_understood(name: str, data: st.DataObject) -> None:
    config = dict(CONFIGS[name])
    field = data.draw(st.sampled_from(sorted(config)))
    config[field] = data.draw(STRANGE)
    try:
        shape = shape_from_config(config, "config.json")
    except UnknownShape:
        return
    assert shape.parameters.total > 0


@pytest.mark.parametrize(
    "name",
    ["rwkv", "rwkv7", "deepseek_v4", "whisper", "mimo_v2_flash", "", None],
)
def test_what_is_not_understood_is_refused_by_its_name(name: str | None) -> None:
    config = {**CONFIGS["qwen/qwen3-8b"], "model_type": name}
    with pytest.raises(UnknownShape, match=f"architecture {name!r}"):
        shape_from_config(config, "config.json")


def test_the_text_part_of_a_model_with_pictures_is_found() -> None:
    text = CONFIGS["google/gemma-3-12b-it"]
    whole = {
        "model_type": "gemma3",
        "text_config": {**text, "model_type": "gemma3_text"},
        "vision_config": {
            "hidden_size": 1152, "intermediate_size": 4304, "num_hidden_layers": 27,
        },
    }  # fmt: skip
    shape, alone = shape_from_config(whole, "c"), shape_from_config(text, "c")
    assert shape.caches == alone.caches
    assert shape.parameters.vision == pytest.approx(0.42e9, rel=0.05)


def test_layers_that_share_keys_and_values_keep_none() -> None:
    config = {**CONFIGS["qwen/qwen3-8b"], "num_kv_shared_layers": 16}
    [group] = shape_from_config(config, "c").caches
    assert group.num_layers == 20


def test_zeroes_that_configs_write_for_nothing_are_nothing() -> None:
    config = CONFIGS["deepseek-ai/deepseek-v2-lite"]
    zeroes = {"first_k_dense_replace": 0, "n_shared_experts": 0, "num_nextn_predict_layers": 0}
    shape = shape_from_config({**config, **zeroes}, "c")
    assert shape.experts is not None
    assert shape.num_draft_layers == 0


def test_an_unused_window_is_no_window() -> None:
    config = {**CONFIGS["qwen/qwen3-8b"], "sliding_window": 4096, "use_sliding_window": False}
    [group] = shape_from_config(config, "c").caches
    assert isinstance(group.cache, AttentionCache)
    assert group.cache.window is None

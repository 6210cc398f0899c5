"""A configuration that cannot work says which field is wrong."""

import pytest

from carpool.scheduling.scheduler import MemoryPolicy


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("num_blocks", 0),
        ("block_size", 0),
        ("max_num_seqs", 0),
        ("max_model_len", -5),
        ("long_prefill_token_threshold", -1),
        ("max_skip_ahead", -1),
        ("max_running_per_person", 0),
        ("max_blocks_per_person", 0),
    ],
)
def test_a_limit_below_its_least_value_is_named(make_config, field, value):
    with pytest.raises(ValueError, match=f"{field} is {value}, but must be at least"):
        make_config(**{field: value})


def test_the_token_budget_must_cover_one_token_for_each_sequence(make_config):
    make_config(max_num_seqs=8, max_num_batched_tokens=8)
    with pytest.raises(ValueError, match="max_num_batched_tokens is 7, less than max_num_seqs"):
        make_config(max_num_seqs=8, max_num_batched_tokens=7)


@pytest.mark.parametrize("weight", [0.0, -1.0, float("nan")])
def test_weights_must_be_above_zero(make_config, weight):
    with pytest.raises(ValueError, match="'ann'"):
        make_config(person_weights={"ann": weight})
    with pytest.raises(ValueError, match="output"):
        make_config(output_token_weight=weight)


def test_policies_may_be_given_by_name(make_config):
    assert make_config(memory_policy="reserve_max").memory_policy is MemoryPolicy.RESERVE_MAX
    with pytest.raises(ValueError, match="'swap' is not a valid MemoryPolicy"):
        make_config(memory_policy="swap")

import pytest

from carpool.scheduling.capacity import Capacity, Provenance


@pytest.mark.parametrize("field", ["max_num_seqs", "kv_tokens", "max_model_len"])
def test_nothing_that_carries_nobody_is_a_capacity(field):
    fields = {"max_num_seqs": 8, "kv_tokens": 1024, "max_model_len": 512, field: 0}
    with pytest.raises(ValueError, match=f"{field} is 0"):
        Capacity(**fields, provenance=Provenance.REPORTED)

"""An OpenVINO language model rewritten for paged attention, with logits where they are wanted."""

from pathlib import Path

import numpy as np
import openvino
from openvino import opset13

from carpool.errors import CarpoolError

LOGIT_ROWS = "sampled_tokens_indices"


class ModelFileError(CarpoolError):
    """The model's files cannot be read, or are not those of a decoder that can be paged."""


def read_model(core: openvino.Core, path: Path) -> openvino.Model:
    """Read an IR. Raises ModelFileError."""
    try:
        return core.read_model(path)
    except RuntimeError as error:
        raise ModelFileError(f"{path}: OpenVINO cannot load it: {reason(error)}") from error


def read_paged_model(core: openvino.Core, path: Path) -> openvino.Model:
    """Read an IR and put block tables in place of its stateful KV cache.

    The model then takes the arrays of `InputBatch` and, per layer, `key_cache.N` and
    `value_cache.N`. Raises ModelFileError.
    """
    from openvino._offline_transformations import paged_attention_transformation

    model = read_model(core, path)
    try:
        paged_attention_transformation(model, False, False)
    except RuntimeError as error:
        raise ModelFileError(f"{path}: OpenVINO cannot page it: {reason(error)}") from error
    _gather_before_head(model, path)
    model.validate_nodes_and_infer_types()
    return model


def reason(error: Exception) -> str:
    """The line of an OpenVINO error that says what went wrong; the others say where."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    told = [line for line in lines if not line.startswith("Exception from")]
    return (told or lines or ["no reason given"])[0]


def _gather_before_head(model: openvino.Model, path: Path) -> None:
    """Let only the rows of `sampled_tokens_indices` reach the language-model head, which is
    the largest matrix of a small model and needs no other row."""
    head = model.get_results()[0].input_value(0).get_node()
    while head.get_type_name() != "MatMul":
        if head.get_input_size() == 0:
            raise ModelFileError(f"{path}: there is no matrix product in front of its logits")
        head = head.input_value(0).get_node()
    rows = opset13.parameter([-1], np.int64, name=LOGIT_ROWS)
    rows.output(0).get_tensor().set_names({LOGIT_ROWS})
    hidden = head.input_value(0)
    gathered = opset13.gather(hidden, rows, opset13.constant(np.int64(0)))
    head.input(0).replace_source_output(gathered.output(0))
    model.add_parameters([rows])

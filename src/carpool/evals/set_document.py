"""The files of eval sets, YAML or JSON lines, as plain values with their places."""

import hashlib
import json
from collections.abc import Hashable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from carpool.errors import CarpoolError

MAX_FILE_BYTES = 64 * 1024 * 1024


class SetFileError(CarpoolError):
    """The file cannot be read, or is neither YAML nor JSON lines."""


@dataclass(frozen=True, slots=True)
class SetDocument:
    """`head` is everything but the cases; a case has its place, like "line 3" or "cases[2]"."""

    head: Any
    cases: list[tuple[str, Any]]
    sha256: str


def read_document(path: Path) -> SetDocument:
    """Raises SetFileError."""
    try:
        with path.open("rb") as file:
            raw = file.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        raise SetFileError(f"cannot read {path}: {error.strerror or error}") from None
    if len(raw) > MAX_FILE_BYTES:
        raise SetFileError(f"{path} is larger than {MAX_FILE_BYTES >> 20} MiB; split it")
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise SetFileError(f"{path} is not UTF-8: {error.reason} at byte {error.start}") from None
    sha256 = hashlib.sha256(raw).hexdigest()
    if path.suffix in (".jsonl", ".ndjson"):
        return _of_lines(path, text, sha256)
    return _of_yaml(path, text, sha256)


def _of_lines(path: Path, text: str, sha256: str) -> SetDocument:
    head: Any = {}
    cases: list[tuple[str, Any]] = []
    # Not splitlines(): JSON may hold U+2028 and the like in its strings.
    for number, line in enumerate(text.split("\n"), 1):
        if not line.strip():
            continue
        try:
            value = json.loads(line, object_pairs_hook=_without_twins)
        except (ValueError, RecursionError) as error:
            raise SetFileError(f"{path}: line {number} is no JSON: {error}") from None
        is_head = isinstance(value, dict) and not {"messages", "prompt", "id"} & value.keys()
        if is_head and not cases and not head:
            head = value
        else:
            cases.append((f"line {number}", value))
    return SetDocument(head, cases, sha256)


def _of_yaml(path: Path, text: str, sha256: str) -> SetDocument:
    try:
        value = yaml.load(text, Loader=_Loader)  # noqa: S506 (a SafeLoader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        where = f" at line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        raise SetFileError(f"{path} is no YAML{where}: {error.problem}") from None
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise SetFileError(f"{path} is no YAML: {error}") from None
    if not isinstance(value, dict) or not isinstance(value.get("cases"), list):
        raise SetFileError(f"{path} must be a mapping with a list of cases (docs/eval.md)")
    cases = [(f"cases[{index}]", case) for index, case in enumerate(value.pop("cases"))]
    return SetDocument(value, cases, sha256)


def _without_twins(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    fields = dict(pairs)
    if len(fields) < len(pairs):
        names = [name for name, _ in pairs]
        twin = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"the field {twin!r} is there twice")
    return fields


class _Loader(yaml.SafeLoader):
    """A SafeLoader that refuses what YAML otherwise takes in silence: a field that is there
    twice, and a value that holds itself."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        if any(key.tag == "tag:yaml.org,2002:merge" for key, _ in node.value):
            return super().construct_mapping(node, deep=deep)
        seen: set[str] = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode):
                if key.value in seen:
                    raise yaml.constructor.ConstructorError(
                        None, None, f"the field {key.value!r} is there twice", key.start_mark
                    )
                seen.add(key.value)
        return super().construct_mapping(node, deep=deep)

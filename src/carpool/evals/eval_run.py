"""What a run of an eval set found, and the file that it is kept in.

The file is JSON lines, each written as soon as it is known: the run, the chat template, the
results as they come, and an end. A run that broke off lacks the end, and is read all the same.
"""

import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, TypeAdapter, ValidationError

from carpool.errors import CarpoolError
from carpool.evals.answer import Answer
from carpool.evals.check import Verdict
from carpool.evals.template import TemplateFacts

FORMAT = 1


class RunFileError(CarpoolError):
    """A stored run that cannot be written or read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunInfo:
    """Which set was run, and against what. `started_at` in unix seconds. `temperature` is set
    where it went before what the set says."""

    set_name: str
    set_sha256: str
    url: str
    model: str
    repeats: int
    temperature: float | None
    started_at: float
    num_planned: int
    """Requests of the whole run."""
    kind: Literal["run"] = "run"
    format: int = FORMAT


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """One request. Without an answer, `error` says why there is none."""

    case_id: str
    tags: tuple[str, ...]
    is_stream: bool
    repeat: int
    has_tools: bool = False
    answer: Answer | None = None
    error: str | None = None
    verdicts: tuple[Verdict, ...] = ()
    kind: Literal["result"] = "result"

    @property
    def key(self) -> str:
        """The case, and how it was asked."""
        return f"{self.case_id} (stream)" if self.is_stream else self.case_id

    @property
    def has_passed(self) -> bool:
        return self.answer is not None and all(verdict.has_passed for verdict in self.verdicts)

    @property
    def reason(self) -> str | None:
        """Why it did not pass, in a line."""
        if self.error is not None:
            return self.error
        faults = (f"{each.check}: {each.reason}" for each in self.verdicts if not each.has_passed)
        return next(faults, None)


@dataclass(frozen=True, slots=True)
class RunEnd:
    kind: Literal["end"] = "end"


@dataclass(frozen=True, slots=True)
class EvalRun:
    info: RunInfo
    template: TemplateFacts
    results: tuple[Result, ...]
    is_complete: bool

    def by_case(self) -> dict[str, list[Result]]:
        """By case and the way it was asked, in the order of the first results."""
        found: dict[str, list[Result]] = {}
        for result in sorted(self.results, key=lambda each: each.repeat):
            found.setdefault(result.key, []).append(result)
        return found


_Line = Annotated[RunInfo | TemplateFacts | Result | RunEnd, Field(discriminator="kind")]
_LINE: TypeAdapter[_Line] = TypeAdapter(_Line)


class RunWriter:
    """Keeps a run in `path` as it goes on, and what it has so far in `results`. A file that was
    there is replaced. Raises RunFileError."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.info: RunInfo | None = None
        self.template = TemplateFacts()
        self.results: list[Result] = []
        self.is_complete = False
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            # It holds people's questions: for nobody else's eyes.
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise _unwritten(path, error) from None
        self._descriptor = descriptor

    def begin(self, info: RunInfo) -> None:
        self.info = info
        self._write(info)

    def found_template(self, template: TemplateFacts) -> None:
        self.template = template
        self._write(template)

    def add(self, result: Result) -> None:
        self.results.append(result)
        self._write(result)

    def end(self) -> None:
        self.is_complete = True
        self._write(RunEnd())

    def close(self) -> None:
        os.close(self._descriptor)

    def run(self) -> EvalRun | None:
        """What there is; None before it began."""
        if self.info is None:
            return None
        return EvalRun(self.info, self.template, tuple(self.results), self.is_complete)

    @property
    def found(self) -> EvalRun:
        """Of a run that began. Raises RunFileError."""
        run = self.run()
        if run is None:
            raise RunFileError(f"{self.path}: nothing was run")
        return run

    def _write(self, line: _Line) -> None:
        try:
            os.write(self._descriptor, _LINE.dump_json(line) + b"\n")
        except OSError as error:
            raise _unwritten(self.path, error) from None


def read_run(path: Path) -> EvalRun:
    """Raises RunFileError."""
    info, template, results, is_complete = None, TemplateFacts(), [], False
    for line in _lines(path):
        match line:
            case RunInfo():
                info = line
            case TemplateFacts():
                template = line
            case Result():
                results.append(line)
            case RunEnd():
                is_complete = True
    if info is None:
        raise RunFileError(f"{path} is no stored run: it does not say what was run")
    if info.format != FORMAT:
        raise RunFileError(f"{path} has the format {info.format} of another Carpool, not {FORMAT}")
    return EvalRun(info, template, tuple(results), is_complete)


def default_path(folder: Path, set_name: str, now: float) -> Path:
    """A file of its own for a run that begins now."""
    name = "".join(char if char.isalnum() or char in "-_." else "-" for char in set_name)[:60]
    moment = time.strftime("%Y%m%d-%H%M%S", time.gmtime(now))
    return folder / "evals" / f"{name}-{moment}-{os.getpid()}.jsonl"


def _lines(path: Path) -> Iterator[_Line]:
    try:
        lines = path.read_bytes().split(b"\n")
    except OSError as error:
        raise RunFileError(f"cannot read {path}: {error.strerror or error}") from None
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            yield _LINE.validate_json(line)
        except ValidationError:
            if number == len(lines):  # cut in the middle of a write
                return
            raise RunFileError(f"{path}: line {number} is no line of a stored run") from None


def _unwritten(path: Path, error: OSError) -> RunFileError:
    return RunFileError(f"cannot write {path}: {error.strerror or error}")

"""A check in Python, from a file beside the eval set, where whoever runs it allows that."""

import asyncio
import importlib.util
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from carpool.evals.answer import Answer
from carpool.evals.check import CheckFailure, Question
from carpool.evals.set_fields import FieldError

HOOK_TIMEOUT_S = 30.0

Function = Callable[[dict[str, Any], dict[str, Any]], bool | str | None]
"""Gets the answer and the question as dicts; True or None passes, False or a reason does not."""


@dataclass(frozen=True, slots=True)
class Hook:
    function: Function
    function_name: str
    name: str = "hook"

    async def fault(self, answer: Answer, question: Question) -> str | None:
        call = asyncio.to_thread(self.function, asdict(answer), asdict(question))
        try:
            said = await asyncio.wait_for(call, HOOK_TIMEOUT_S)
        except TimeoutError:
            raise CheckFailure(f"{self.function_name} took over {HOOK_TIMEOUT_S:g} s") from None
        except Exception as error:  # whatever somebody's function raises is told, by its name
            raise CheckFailure(
                f"{self.function_name} raised {type(error).__name__}: {error}"
            ) from None
        if said is None or said is True:
            return None
        if said is False:
            return f"{self.function_name} says no"
        if isinstance(said, str):
            return said
        raise CheckFailure(
            f"{self.function_name} returned {said!r:.80}, but must return True, False, None or a "
            "reason"
        )


class HookFile:
    """`file` beside the eval set at `set_path`. It is run with the first function that is asked
    for, and only if `is_allowed`."""

    def __init__(self, set_path: Path, file: str | None, is_allowed: bool) -> None:
        self._folder = set_path.absolute().parent
        self._file = file
        self._is_allowed = is_allowed
        self._module: ModuleType | None = None

    def function(self, name: str) -> Function:
        """Raises FieldError."""
        if self._file is None:
            raise FieldError(
                "hook", "the set names no file of hooks; give it, like hooks: hooks.py"
            )
        if not self._is_allowed:
            raise FieldError(
                "hook", f"runs {name} of {self._file}; pass --allow-hooks if you trust that file"
            )
        if self._module is None:
            self._module = self._load(self._file)
        function = getattr(self._module, name, None)
        if not callable(function):
            raise FieldError("hook", f"{self._file} has no function {name!r}")
        found: Function = function
        return found

    def _load(self, file: str) -> ModuleType:
        path = (self._folder / file).resolve()
        if path.parent != self._folder.resolve() or path.suffix != ".py":
            raise FieldError("hook", f"{file} must be a .py file in the folder of the set")
        if not path.is_file():
            raise FieldError("hook", f"there is no {path}")
        spec = importlib.util.spec_from_file_location(f"carpool_hooks_{path.stem}", path)
        if spec is None or spec.loader is None:
            raise FieldError("hook", f"{path} cannot be loaded as Python")
        module = importlib.util.module_from_spec(spec)
        try:
            spec.loader.exec_module(module)
        except Exception as error:  # whatever somebody's file raises is told, by its name
            raise FieldError(
                "hook", f"{file} raised {type(error).__name__} as it was loaded: {error}"
            ) from None
        return module

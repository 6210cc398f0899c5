"""How much text the fixed repetitions of a grammar stand for.

llguidance writes out text that is repeated a fixed number of times, and nothing can stop it:
`a{1000000000}` fills the memory. So the counts are multiplied here, before it sees them. What
is said is never too little; alternatives and classes of characters count like text.
"""

import math
import re

MOST = 10**12
"""What a size is at most said to be."""

_REGEX_TOKEN = re.compile(
    r"\\[pPxuU]\{[^}]*\}|\\.|\[\^?\]?|\{\s*(?P<count>\d*)\s*(?:,\s*\d*\s*)?\}|.", re.DOTALL
)
_VERBOSE = re.compile(r"\(\?[A-Za-z]*x")
_COUNT = re.compile(r"[{~]\s*(\d+)")
_LARK_DEFINITION = re.compile(r"^[ \t]*[?!]?(\w+)[^:\n]*:", re.MULTILINE)
_LARK_TERMINAL = re.compile(r"\b_?[A-Z][A-Z0-9_]*\b")
_LARK_REGEX = re.compile(r"\s*/(?:\\.|[^/\\\n])+/[imslu]*\s*")
_MAX_DIGITS = 9


def regex_size(pattern: str) -> int:
    """Characters of `pattern` (Rust syntax) once its counted repetitions are written out."""
    if _VERBOSE.search(pattern):
        # Its comments may hold parentheses, so what a count repeats cannot be told.
        return min(len(pattern) * _product_of_counts(pattern), MOST)
    groups, last, class_depth = [0], 0, 0
    for match in _REGEX_TOKEN.finditer(pattern):
        piece = match[0]
        if piece.startswith("["):
            class_depth += 1
            continue
        if class_depth and piece != "]":
            continue
        class_depth = max(0, class_depth - (piece == "]"))
        if class_depth:
            continue
        if piece == "(":
            groups.append(0)
        elif match["count"] is not None:
            times = _count(match["count"]) - 1
            groups[-1] += times * last
            last += times * last
        elif piece not in "*+?":
            last = groups.pop() if piece == ")" and len(groups) > 1 else 1
            groups[-1] += last
    return min(sum(groups), MOST)


def lark_size(text: str) -> int:
    """Characters of the definitions of a Lark grammar, each with the terminals it refers to and
    all its repetitions written out, as llguidance does with terminals."""
    parts = _LARK_DEFINITION.split(text)
    bodies: dict[str, str] = {}
    for name, body in zip(parts[1::2], parts[2::2], strict=True):
        bodies[name] = f"{bodies.get(name, '')} {body}"
    sizes: dict[str, int] = {}
    for name in bodies:
        _measure(name, bodies, sizes)
    return min(sum(sizes.values()), MOST)


def _measure(name: str, bodies: dict[str, str], sizes: dict[str, int]) -> None:
    """Fill in `sizes[name]` and those of the terminals under it, the innermost first."""
    open_names = [name]
    while open_names:
        body = bodies[open_names[-1]]
        references = [each for each in _LARK_TERMINAL.findall(body) if each in bodies]
        unknown = [each for each in references if each not in sizes and each not in open_names]
        if unknown:
            open_names.append(unknown[0])
            continue
        if _LARK_REGEX.fullmatch(body):
            size = regex_size(body)
        else:
            size = len(body) + sum(sizes.get(each, 0) for each in references)
            size *= _product_of_counts(body)
        sizes[open_names.pop()] = size


def _product_of_counts(text: str) -> int:
    return math.prod(_count(digits) for digits in _COUNT.findall(text))


def _count(digits: str) -> int:
    """At least 1: what may be left out is written once."""
    return max(1, int(digits or 1)) if len(digits) <= _MAX_DIGITS else 10**_MAX_DIGITS

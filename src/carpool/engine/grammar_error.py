"""What is wrong with a grammar, in one sentence that says nothing of the compiler's insides."""

import re

_MAX_CHARS = 300
TOO_COMPLEX = "it is too complex; make it smaller"
NO_TEXT = "no text can match it"
_LISTING = re.compile(r"\n +\d+ \| .*", re.DOTALL)
_PLACE = re.compile(r"^(?:at )?(\d+)\((\d+)\): ")
_FOUND_AT = re.compile(r" \(at \".*\"\)?.*$", re.DOTALL)
_REGEX_REASON = re.compile(r"regex parse error:.*^error: ([^\n]*)", re.DOTALL | re.MULTILINE)
_SCHEMA = "failed to compile JSON schema: "
_RULES: tuple[tuple[re.Pattern[str], str], ...] = tuple(
    (re.compile(pattern, re.DOTALL), words)
    for pattern, words in (
        (r"NoExtension", NO_TEXT),
        (r"[Tt]oo many|max is \d|too big|too large|[Ll]imit for|fuel|Unable to determine|"
         r"TooComplex|limit \d+", TOO_COMPLEX),
        (r"recursion limit|too deep", "it is nested too deeply"),
        (r"Unimplemented keys: \[(.*)\]", r"the schema uses \1, which is not supported"),
        (r"Unsatisfiable schema: (.*)", r"no JSON can satisfy the schema: \1"),
        (r"Resource '(.*?)' is not present.*", r"the schema refers to \1, outside of itself"),
        (r"Pointer '(.*?)' does not exist", r"the schema refers to #\1, which does not exist"),
        (r"Expected f64 for '(.*?)', got (.*)", r"\1 in the schema must be a number, not \2"),
        (r"Expected (\w+) for '(.*?)', got (.*)", r"\2 in the schema must be of type \1, not \3"),
    )
)  # fmt: skip


class GrammarError(ValueError):
    """A grammar cannot be used: malformed, impossible, or too large or costly."""


def sentence(error: str) -> str:
    """llguidance's `error` for the person whose grammar it is."""
    text = _LISTING.sub("", error.replace("<non-verbose/>", "")).strip()
    if reason := _REGEX_REASON.search(text):
        return _short(f"{reason[1]} in a regular expression")
    place = _PLACE.match(text)
    text = _PLACE.sub("", text)
    is_schema = text.startswith(_SCHEMA)
    text = _FOUND_AT.sub("", text.removeprefix(_SCHEMA))
    for pattern, words in _RULES:
        if match := pattern.search(text):
            return _short(match.expand(words))
    where = f" (line {place[1]}, column {place[2]})" if place and not is_schema else ""
    return _short(f"{' '.join(text.split())}{where}")


def _short(text: str) -> str:
    return text if len(text) <= _MAX_CHARS else f"{text[:_MAX_CHARS]}..."

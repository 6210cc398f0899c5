"""Reads JSON a character at a time and says at once where it stops being JSON."""

import re
from enum import Enum, auto

JSON_WHITESPACE = " \t\n\r"
_ESCAPES = '"\\/bfnrt'
_HEX = "0123456789abcdefABCDEF"
_SCALAR = re.compile(r"-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][+-]?\d+)?|true|false|null", re.ASCII)
_SCALAR_START = "-0123456789tfn"


class Expect(Enum):
    """What the scanner takes next."""

    VALUE = auto()
    VALUE_OR_END = auto()
    KEY = auto()
    KEY_OR_END = auto()
    COLON = auto()
    COMMA_OR_END = auto()
    STRING = auto()
    ESCAPE = auto()
    HEX_DIGIT = auto()
    SCALAR = auto()
    NOTHING = auto()


class JsonScanner:
    """A pushdown automaton for one JSON object or array (RFC 8259, no leniency).

    `feed` takes one character and is False from the first character that cannot follow.
    `depth` is the number of open containers; `is_done` says that the value is complete.
    """

    def __init__(self) -> None:
        self.expect = Expect.VALUE
        self._open: list[str] = []
        self._is_key = False
        self._num_hex_digits = 0
        self._scalar = ""

    @property
    def depth(self) -> int:
        return len(self._open)

    @property
    def is_done(self) -> bool:
        return self.expect is Expect.NOTHING

    @property
    def is_in_key(self) -> bool:
        return self._is_key

    def feed(self, character: str) -> bool:
        if self.expect is Expect.STRING:
            return self._feed_string(character)
        if self.expect is Expect.ESCAPE:
            return self._feed_escape(character)
        if self.expect is Expect.HEX_DIGIT:
            return self._feed_hex_digit(character)
        if self.expect is Expect.SCALAR:
            return self._feed_scalar(character)
        if character in JSON_WHITESPACE:
            return not self.is_done
        return self._feed_structure(character)

    def _feed_string(self, character: str) -> bool:
        if character == "\\":
            self.expect = Expect.ESCAPE
        elif character == '"':
            self.expect = Expect.COLON if self._is_key else Expect.COMMA_OR_END
            self._is_key = False
        return character >= " "

    def _feed_escape(self, character: str) -> bool:
        if character == "u":
            self.expect, self._num_hex_digits = Expect.HEX_DIGIT, 4
            return True
        self.expect = Expect.STRING
        return character in _ESCAPES

    def _feed_hex_digit(self, character: str) -> bool:
        self._num_hex_digits -= 1
        if self._num_hex_digits == 0:
            self.expect = Expect.STRING
        return character in _HEX

    def _feed_scalar(self, character: str) -> bool:
        if character not in ",]}" and character not in JSON_WHITESPACE:
            self._scalar += character
            return True
        self.expect = Expect.COMMA_OR_END
        return _SCALAR.fullmatch(self._scalar) is not None and self.feed(character)

    def _feed_structure(self, character: str) -> bool:
        match self.expect:
            case Expect.COLON:
                self.expect = Expect.VALUE
                return character == ":"
            case Expect.KEY | Expect.KEY_OR_END if character == '"':
                self._is_key, self.expect = True, Expect.STRING
                return True
            case Expect.VALUE | Expect.VALUE_OR_END if character not in "]}":
                return self._start_value(character)
            case Expect.COMMA_OR_END if character == ",":
                self.expect = Expect.KEY if self._open[-1] == "{" else Expect.VALUE
                return True
            case Expect.COMMA_OR_END | Expect.KEY_OR_END | Expect.VALUE_OR_END:
                return self._close(character)
        return False

    def _start_value(self, character: str) -> bool:
        if character == "{" or character == "[":
            self._open.append(character)
            self.expect = Expect.KEY_OR_END if character == "{" else Expect.VALUE_OR_END
            return True
        if not self._open:
            return False
        if character == '"':
            self.expect = Expect.STRING
            return True
        self.expect, self._scalar = Expect.SCALAR, character
        return character in _SCALAR_START

    def _close(self, character: str) -> bool:
        if character != ("}" if self._open[-1] == "{" else "]"):
            return False
        self._open.pop()
        self.expect = Expect.COMMA_OR_END if self._open else Expect.NOTHING
        return True

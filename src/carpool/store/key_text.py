"""A key as text, `cp-<key id>-<secret>`, and the check of its secret. Pure.

The admin API's key begins with `cpa-`.

The id is 60 bits in base32 (12 of a-z2-7), the secret 256 bits in base64url without
padding (43 characters). Only the SHA-256 of the secret is ever stored: against 256 random
bits a plain hash is enough, there is nothing to guess.
"""

import base64
import hashlib
import hmac
import re
from enum import StrEnum
from typing import NamedTuple

ID_CHARS = 12
ID_BYTES = 8
SECRET_BYTES = 32
KEY_BYTES = ID_BYTES + SECRET_BYTES

# The 43rd character carries 4 bits, so that one secret has one spelling.
_KEY = re.compile(r"(cpa?)-([a-z2-7]{12})-([A-Za-z0-9_-]{42}[AEIMQUYcgkosw048])", re.ASCII)
_IN_TEXT = re.compile(r"((?i:cpa?)-[A-Za-z0-9]{12})-[A-Za-z0-9_\-+/=]+", re.ASCII)


class KeyKind(StrEnum):
    PERSON = "cp"
    ADMIN = "cpa"


class ParsedKey(NamedTuple):
    key_id: str
    secret: bytes


def new_id(random: bytes) -> str:
    """The id of a key or a person from `ID_BYTES` random bytes."""
    return base64.b32encode(random).decode("ascii")[:ID_CHARS].lower()


def new_key_text(random: bytes) -> str:
    """A key as text from `KEY_BYTES` random bytes: first the id's, then the secret's."""
    return format_key_text(new_id(random[:ID_BYTES]), random[ID_BYTES:])


def format_key_text(key_id: str, secret: bytes, kind: KeyKind = KeyKind.PERSON) -> str:
    return f"{kind.value}-{key_id}-{base64.urlsafe_b64encode(secret).decode('ascii').rstrip('=')}"


def parse_key_text(text: str, kind: KeyKind = KeyKind.PERSON) -> ParsedKey | None:
    """None for anything that is not a whole key of this kind."""
    match = _KEY.fullmatch(text)
    if match is None or match[1] != kind.value:
        return None
    key_id, secret = match[2], match[3]
    return ParsedKey(key_id, base64.urlsafe_b64decode(f"{secret}="))


def hash_secret(secret: bytes) -> bytes:
    return hashlib.sha256(secret).digest()


def secret_matches(secret: bytes, secret_sha256: bytes) -> bool:
    """In constant time."""
    return hmac.compare_digest(hash_secret(secret), secret_sha256)


def redact_keys(text: str) -> str:
    """`text` with the secret of every key in it, whole or mangled, replaced by `***`."""
    return _IN_TEXT.sub(r"\1-***", text)

"""The pages for browsers: a few files, which come with the package."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from importlib.resources.abc import Traversable

from starlette.responses import Response

FOLDER = "/pages/"
"""Where scripts, styles and pictures are."""
_MEDIA_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
_HEADERS = {
    "cache-control": "no-cache",
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; "
    "connect-src 'self'; img-src 'self' data:; frame-ancestors 'none'; base-uri 'none'; "
    "form-action 'self'",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), geolocation=(), microphone=()",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
}


@dataclass(frozen=True, slots=True)
class Page:
    body: bytes
    media_type: str
    etag: str


class Pages:
    """`documents` are the paths of documents, with the names of their files."""

    def __init__(self, documents: Mapping[str, str]) -> None:
        self._pages = {path: _all_files()[name] for path, name in documents.items()}
        self._pages |= {
            f"{FOLDER}{name}": page
            for name, page in _all_files().items()
            if not name.endswith(".html")
        }

    @property
    def paths(self) -> list[str]:
        return list(self._pages)

    def answer(self, path: str, if_none_match: str = "") -> Response | None:
        """None where there is no such page. What the browser has already is not sent again."""
        page = self._pages.get(path)
        if page is None:
            return None
        headers = _HEADERS | {"etag": page.etag}
        if page.etag in if_none_match:
            return Response(status_code=304, headers=headers)
        return Response(page.body, headers=headers | {"content-type": page.media_type})


@cache
def _all_files() -> dict[str, Page]:
    """By their paths in the folder of pages."""
    return dict(_read(files("carpool.watch") / "pages", ""))


def _read(folder: Traversable, prefix: str) -> list[tuple[str, Page]]:
    found: list[tuple[str, Page]] = []
    for entry in folder.iterdir():
        if entry.is_dir():
            found += _read(entry, f"{prefix}{entry.name}/")
            continue
        media_type = _MEDIA_TYPES.get(f".{entry.name.rpartition('.')[2]}")
        if media_type is not None:
            body = entry.read_bytes()
            etag = f'"{hashlib.sha256(body).hexdigest()[:16]}"'
            found.append((f"{prefix}{entry.name}", Page(body, media_type, etag)))
    return found

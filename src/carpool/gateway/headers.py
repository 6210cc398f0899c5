"""Which headers travel on: those of the message, not of one hop, and no credentials."""

from collections.abc import Iterable

Headers = list[tuple[bytes, bytes]]

# RFC 9110, section 7.6.1, with what proxies add to it.
_HOP_BY_HOP = frozenset(
    (
        b"connection",
        b"keep-alive",
        b"proxy-authenticate",
        b"proxy-authorization",
        b"proxy-connection",
        b"te",
        b"trailer",
        b"transfer-encoding",
        b"upgrade",
    )
)
_NOT_UPSTREAM = _HOP_BY_HOP | {
    b"host",
    b"content-length",
    b"content-type",  # whatever the client calls it, what is forwarded has been read as JSON
    b"expect",
    b"accept-encoding",  # a compressed answer could not be read here
    # The client's credentials.
    b"authorization",
    b"x-api-key",
    b"api-key",
    b"x-goog-api-key",
    b"cookie",
    # What would say who sends or how urgent it is: only the key does.
    b"forwarded",
    b"x-real-ip",
    b"priority",
    b"x-priority",
}
_NOT_UPSTREAM_PREFIXES = (b"x-forwarded-", b"x-gateway-", b"x-carpool-")
# What an API needs to know. The rest may say who asks and where: proxies in front that log people
# in put their names there.
_FOR_OTHERS = frozenset(
    (b"accept", b"user-agent", b"anthropic-beta", b"anthropic-version", b"openai-beta")
)
_NOT_DOWNSTREAM = _HOP_BY_HOP | {b"content-length", b"server", b"date", b"x-carpool-model"}
_STREAM_ONLY = {b"cache-control", b"x-accel-buffering"}


def upstream_headers(headers: Iterable[tuple[bytes, bytes]], key: str | None) -> Headers:
    """What goes to the engine of a request's headers (names in lower case), with the key that
    the engine wants, if any, in the places where the APIs look for it."""
    headers = list(headers)
    dropped = _with_named(_NOT_UPSTREAM, headers)
    kept = [
        header
        for header in headers
        if header[0] not in dropped and not header[0].startswith(_NOT_UPSTREAM_PREFIXES)
    ]
    kept.append((b"content-type", b"application/json"))
    if key is not None:
        secret = key.encode()
        kept += [(b"authorization", b"Bearer " + secret), (b"x-api-key", secret)]
    return kept


def headers_for_others(headers: Iterable[tuple[bytes, bytes]]) -> Headers:
    """What of a request's headers goes to an endpoint that is not ours."""
    return [header for header in headers if header[0] in _FOR_OTHERS]


def downstream_headers(headers: Iterable[tuple[bytes, bytes]], *, is_stream: bool) -> Headers:
    """What goes to the client of an answer's headers, without Content-Length.

    A stream is marked so that no proxy on the way holds it back or keeps it.
    """
    headers = list(headers)
    dropped = _with_named(_NOT_DOWNSTREAM, headers)
    if not is_stream:
        return [header for header in headers if header[0] not in dropped]
    dropped |= _STREAM_ONLY
    kept = [header for header in headers if header[0] not in dropped]
    return [*kept, (b"cache-control", b"no-cache"), (b"x-accel-buffering", b"no")]


def first_value(headers: Iterable[tuple[bytes, bytes]], name: bytes) -> bytes:
    """The value of the first header of that name; b"" without one."""
    return next((value for each, value in headers if each == name), b"")


def _with_named(names: frozenset[bytes], headers: Headers) -> frozenset[bytes]:
    """`names` with those that a Connection header says are of this hop only."""
    named = [value for name, value in headers if name == b"connection"]
    if not named:
        return names
    return names.union(token.strip().lower() for value in named for token in value.split(b","))

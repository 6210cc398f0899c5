"""Which of the APIs a path belongs to: each has its own names for usage, text and errors."""

from enum import StrEnum


class ApiKind(StrEnum):
    CHAT = "chat"
    COMPLETIONS = "completions"
    RESPONSES = "responses"
    MESSAGES = "messages"
    EMBEDDINGS = "embeddings"
    OTHER = "other"


_KINDS = {
    "/v1/chat/completions": ApiKind.CHAT,
    "/v1/completions": ApiKind.COMPLETIONS,
    "/v1/responses": ApiKind.RESPONSES,
    "/v1/messages": ApiKind.MESSAGES,
    "/v1/embeddings": ApiKind.EMBEDDINGS,
}


def kind_of_path(path: str) -> ApiKind:
    """The API of a request path; OTHER passes through and reports no usage."""
    return _KINDS.get(path, ApiKind.OTHER)

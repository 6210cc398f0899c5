"""A line in the log per request, for those who want it."""

import logging
from typing import Any

from carpool.gateway.exchange import Exchange
from carpool.gateway.logs import ACCESS
from carpool.gateway.refusal import Refusal
from carpool.store.usage_row import UsageRow

_log = logging.getLogger(ACCESS)


class AccessLog:
    """A line per request that was for a model, when it has ended. Never what was asked or
    answered."""

    def ended(self, exchange: Exchange, row: UsageRow) -> None:
        _log_access(
            request_id=row.request_id,
            key_id=row.key_id,
            person=exchange.caller.person.name,
            model=row.model,
            backend=row.backend,
            api=row.api,
            outcome=row.outcome,
            status=row.status,
            is_stream=row.is_stream,
            is_fallback=row.is_fallback,
            prompt_tokens=row.prompt_tokens,
            cached_tokens=row.cached_tokens,
            output_tokens=row.output_tokens,
            queue_ms=round(row.queue_ms, 1),
            ttft_ms=None if row.ttft_ms is None else round(row.ttft_ms, 1),
            total_ms=round(row.total_ms, 1),
        )

    def refused(self, request_id: str, refusal: Refusal) -> None:
        _log_access(request_id=request_id, outcome=refusal.outcome.value, status=refusal.status)


def _log_access(**fields: Any) -> None:
    _log.info("request", extra={"fields": fields})

"""What `carpool verify` found, as one page that needs nothing but itself."""

import time
from collections.abc import Iterator
from html import escape
from math import isfinite

from carpool import __version__
from carpool.bench.as_html import figure, level_section, page, table
from carpool.bench.plan_check import PlanCheck
from carpool.bench.svg import Series, plot
from carpool.bench.verify_text import comparison_cells, engine_lines, headline, level_cells


def verify_as_html(check: PlanCheck) -> str:
    verified = check.verified
    moment = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(verified.started_at))
    title = f"{verified.target.model}: the plan, tested"
    body = [
        f"<h1>{escape(title)}</h1>",
        f'<p class="soft">{escape(check.engine)} {escape(check.version)} on '
        f"{escape(check.device)}, {moment}, carpool verify {__version__}</p>",
        *(f"<p>{escape(line)}</p>" for line in headline(check).splitlines()),
        "<h2>Predicted and measured</h2>",
        f"<p>No plan: {escape(check.no_plan)}.</p>" if check.plan is None else "",
        table(comparison_cells(check)),
        *_listed("Why", check.reasons()),
        *_listed("At double", [line] if (line := check.degradation()) else []),
        "<h2>All levels</h2>",
        table(level_cells(check)),
        f'<div class="plots">{"".join(_plots(check))}</div>',
        *_listed("Measured of the engine", list(engine_lines(check))),
        *(part for level in verified.levels for part in level_section(level.result)),
    ]
    return page(title, "".join(body))


def _listed(title: str, lines: list[str]) -> Iterator[str]:
    if lines:
        yield f"<h2>{escape(title)}</h2>"
        yield from (f"<p>{escape(line)}</p>" for line in lines)


def _plots(check: PlanCheck) -> Iterator[str]:
    levels = check.verified.measured
    tolerance = check.verified.config.search.tolerance_s
    ttft = [
        Series("mean", [(float(level.concurrency), level.ttft_s) for level in levels]),
        Series(
            "p99",
            [
                (float(level.concurrency), level.ttft_p99_s)
                for level in levels
                if isfinite(level.ttft_p99_s)
            ],
        ),
    ]
    rates = [(float(level.concurrency), level.stream_tokens_per_s) for level in levels]
    each = [Series("", [(at, rate) for at, rate in rates if rate is not None])]
    total = [Series("", [(float(level.concurrency), level.tokens_per_s) for level in levels])]
    yield figure("Time to first token", plot(ttft, "at once", "s", y_limit=tolerance))
    yield figure("Tokens a second of a stream", plot(each, "at once", "tok/s"))
    yield figure("Tokens a second in all", plot(total, "at once", "tok/s"))

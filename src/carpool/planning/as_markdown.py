"""A plan as Markdown, for an issue or a wiki."""

from collections.abc import Sequence

from carpool.planning.as_text import between, gib, money_as_text, whole
from carpool.planning.choices import Choice
from carpool.planning.flags import Command
from carpool.planning.money import Money
from carpool.planning.plan import Plan


def plan_as_markdown(
    plan: Plan, choices: Sequence[Choice], commands: Sequence[Command], money: Money | None
) -> str:
    request = plan.request
    lines = [
        f"# {request.model.name} on {request.num_devices} x {request.device.name}",
        "",
        f"{plan.settings.engine}: {'does not fit: ' + plan.trouble if plan.trouble else 'fits'}.",
        "",
        *_table(("memory of one device", "GiB", "known"), _memory_rows(plan)),
        "",
        *_table(("sequences at once", "number"), _sequence_rows(plan)),
    ]
    if choices:
        lines += ["", "## What one decision buys", ""]
        lines += _table(("decision", "sequences", "people", "tokens/s each"), _choice_rows(choices))
    for command in commands:
        lines += ["", f"## {command.engine}", "", "```sh", command.text, "```", ""]
        lines += [f"- `{flag.text}`: {flag.why}" for flag in command.flags]
    if money:
        title, *rest = money_as_text(money, plan).split("\n")
        lines += ["", f"## {title}", "", *(f"- {line.strip()}" for line in rest)]
    return "\n".join(lines)


def _memory_rows(plan: Plan) -> list[tuple[str, ...]]:
    memory = plan.memory
    names = ("total", "budget", "weights", "kv_cache", "activation", "non_torch", "graphs")
    figures = [(name.replace("_", " "), getattr(memory, name)) for name in names]
    return [(name, gib(figure), figure.known.value) for name, figure in figures]


def _sequence_rows(plan: Plan) -> list[tuple[str, ...]]:
    return [
        (f"of {plan.request.profile.context_tokens:,} tokens", whole(plan.seqs_at_context)),
        (f"of {plan.settings.max_model_len:,} tokens (full)", whole(plan.seqs_at_full)),
    ]


def _choice_rows(choices: Sequence[Choice]) -> list[tuple[str, ...]]:
    rows: list[tuple[str, ...]] = []
    for choice in choices:
        plan = choice.plan
        if plan is None or plan.people is None or plan.planned is None:
            rows.append((choice.name, "-", "-", choice.why or "does not fit"))
            continue
        rows.append(
            (
                choice.name,
                f"{plan.seqs_at_context.value:,.0f}",
                f"{plan.people.most_people[0]:,}",
                between(plan.planned.tokens_per_second),
            )
        )
    return rows


def _table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    lines = ["| " + " | ".join(columns) + " |", "|" + "---|" * len(columns)]
    return lines + [
        "| " + " | ".join(cell.replace("|", "/") for cell in row) + " |" for row in rows
    ]

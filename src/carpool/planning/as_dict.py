"""A plan as plain data, for JSON: bytes, tokens and seconds, every figure with its range and
how it is known."""

from dataclasses import asdict
from typing import Any

from carpool.planning.as_text import profile_known, shape_known
from carpool.planning.choices import Choice
from carpool.planning.figure import Figure, Known
from carpool.planning.flags import Command
from carpool.planning.money import Money
from carpool.planning.plan import Plan
from carpool.planning.speed import Pace


def plan_as_dict(
    plan: Plan,
    choices: list[Choice],
    commands: list[Command],
    money: Money | None,
    nearest: str | None = None,
) -> dict[str, Any]:
    request, settings = plan.request, plan.settings
    memory = {name: figure_as_dict(getattr(plan.memory, name)) for name in plan.memory.__slots__}
    return {
        "model": {
            "name": request.model.name,
            "source": request.model.source,
            "architecture": request.model.shape.model_type,
            "attention": request.model.shape.attention_class,
            "parameters": request.model.shape.parameters.total,
            "active_parameters": request.model.shape.parameters.active,
            "max_model_len": request.model.shape.max_model_len,
            "weight_format": plan.weights.format.name,
            "weight_bytes": plan.weights.bytes.total,
            "weights_known": plan.weights.known.value,
        },
        "device": {"name": request.device.name, "count": request.num_devices},
        "engine": settings.engine.value,
        "settings": {
            name: getattr(settings, name)
            for name in settings.__slots__
            if name not in ("engine", "version")
        },
        "fits": plan.trouble is None,
        "trouble": plan.trouble,
        "would_fit_with": nearest,
        "memory_bytes_per_device": memory,
        "kv_cache": {
            "bytes_per_token": plan.pool.bytes_per_token,
            "bytes_per_token_known": shape_known(plan),
            "state_bytes_per_sequence": plan.pool.demand.state,
            "tokens": plan.pool.kv_tokens,
            "tokens_known": plan.memory.kv_cache.known,
            "block_size": plan.pool.block_size,
        },
        "sequences": {
            "context_tokens": request.profile.context_tokens,
            "at_context": figure_as_dict(plan.seqs_at_context),
            "full_tokens": settings.max_model_len,
            "at_full": figure_as_dict(plan.seqs_at_full),
        },
        "simple_formula": asdict(plan.simple)
        | {
            "at_context": plan.simple.num_seqs(request.profile.context_tokens),
            "at_full": plan.simple.num_seqs(settings.max_model_len or 1),
        },
        "profile": asdict(request.profile) | {"sources": dict(request.profile.sources)},
        "people": _people(plan),
        "speed": _speed(plan),
        "capacity": _capacity(plan),
        "choices": [_choice(choice) for choice in choices],
        "commands": [
            {"engine": command.engine, "text": command.text, "reasons": _reasons(command)}
            for command in commands
        ],
        "money": None if money is None else _money(money),
    }


def figure_as_dict(figure: Figure) -> dict[str, Any]:
    return {
        "value": figure.value,
        "low": figure.low,
        "high": figure.high,
        "known": figure.known.value,
    }


def _people(plan: Plan) -> dict[str, Any] | None:
    if plan.people is None:
        return None
    return asdict(plan.people) | {"known": profile_known(plan.request.profile)}


def _speed(plan: Plan) -> dict[str, Any] | None:
    if plan.speed is None or plan.planned is None or plan.double is None:
        return None
    return {
        "planned": _pace(plan.planned),
        "double": _pace(plan.double),
        "sweet_spot": plan.speed.sweet_spot,
    }


def _pace(pace: Pace) -> dict[str, Any]:
    return {"sequences": pace.num_seqs} | {
        name: figure_as_dict(getattr(pace, name)) for name in pace.__slots__ if name != "num_seqs"
    }


def _capacity(plan: Plan) -> dict[str, Any] | None:
    capacity = plan.capacity
    return None if capacity is None else asdict(capacity) | {"provenance": capacity.provenance}


def _choice(choice: Choice) -> dict[str, Any]:
    plan = choice.plan
    if plan is None:
        return {"name": choice.name, "open": False, "why": choice.why}
    return {
        "name": choice.name,
        "open": True,
        "fits": plan.trouble is None,
        "trouble": plan.trouble,
        "context_tokens": plan.request.profile.context_tokens,
        "engines": plan.settings.data_parallel,
        "at_context": plan.seqs_at_context.value * plan.settings.data_parallel,
        "at_full": plan.seqs_at_full.value * plan.settings.data_parallel,
        "people": plan.people.most_people[0] if plan.people else None,
    }


def _reasons(command: Command) -> dict[str, str]:
    return {flag.text: flag.why for flag in command.flags}


def _money(money: Money) -> dict[str, Any]:
    """Infinity is no JSON: where buying never pays, there is null."""

    def finite(value: Any) -> Any:
        if isinstance(value, tuple):
            return [finite(item) for item in value]
        return None if value == float("inf") else value

    known = dict.fromkeys(("buy", "rent_per_hour"), Known.PUBLISHED)
    known |= {"power_per_hour": Known.ASSUMED}
    return {name: finite(getattr(money, name)) for name in money.__slots__} | {"known": known}

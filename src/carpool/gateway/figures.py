"""What a worker shows its parent, and the sum of what all of them show."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from prometheus_client.core import Metric
from prometheus_client.parser import text_string_to_metric_families
from pydantic import TypeAdapter

from carpool.gateway.live_state import (
    Load,
    ModelState,
    PersonLoad,
    Place,
    in_order,
    sum_of,
)

SHARED = frozenset(
    f"carpool_gateway_{name}"
    for name in (
        "seats",
        "kv_tokens",
        "breaker_state",
        "database_away",
        "counters_away",
        "keys_age_seconds",
    )
)
"""Gauges that all workers show of one thing, or of which the worst counts; others add up."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """`metrics` is Prometheus' text."""

    metrics: str
    models: tuple[ModelState, ...]
    people: tuple[PersonLoad, ...]
    places: tuple[Place, ...]


FIGURES = TypeAdapter(Figures)
PLACES = TypeAdapter(list[Place])


def families_of(text: str) -> list[Metric]:
    return list(text_string_to_metric_families(text))


def counted(families: Iterable[Metric]) -> list[Metric]:
    """Without the gauges: what stays counted when a worker is gone."""
    return [family for family in families if family.type != "gauge"]


def summed(pages: Iterable[Iterable[Metric]]) -> Iterator[Metric]:
    """One page of several workers'."""
    sums: dict[str, Metric] = {}
    values: dict[str, dict[tuple[str, tuple[tuple[str, str], ...]], float]] = {}
    for families in pages:
        for family in families:
            sums.setdefault(family.name, Metric(family.name, family.documentation, family.type))
            found = values.setdefault(family.name, {})
            for sample in family.samples:
                series = sample.name, tuple(sample.labels.items())
                before = found.get(series)
                if before is None:
                    found[series] = sample.value
                elif family.name in SHARED:
                    found[series] = max(before, sample.value)
                else:
                    found[series] = before + sample.value
    for name, family in sums.items():
        for (sample_name, labels), value in values[name].items():
            family.add_sample(sample_name, dict(labels), value)
        yield family


def merged_models(own: Sequence[ModelState], workers: Iterable[Figures]) -> list[ModelState]:
    """States as the parent sees them, with the load of all workers."""
    pages = list(workers)
    return [
        replace(
            state,
            load=sum_of(page.models[number].load for page in pages),
            replicas=tuple(
                replace(
                    replica,
                    in_flight=sum(page.models[number].replicas[n].in_flight for page in pages),
                )
                for n, replica in enumerate(state.replicas)
            ),
        )
        for number, state in enumerate(own)
    ]


def merged_people(workers: Iterable[Figures]) -> list[PersonLoad]:
    people: dict[str, PersonLoad] = {}
    for page in workers:
        for each in page.people:
            known = people.get(each.person_id)
            people[each.person_id] = each if known is None else _both(known, each)
    return sorted(people.values(), key=lambda person: person.name)


def merged_places(workers: Iterable[Figures]) -> list[Place]:
    return in_order(place for page in workers for place in page.places)


def _both(one: PersonLoad, other: PersonLoad) -> PersonLoad:
    names = [*one.models, *(name for name in other.models if name not in one.models)]
    models = {
        name: sum_of((one.models.get(name, Load()), other.models.get(name, Load())))
        for name in names
    }
    return replace(one, load=sum_of(models.values()), models=models)

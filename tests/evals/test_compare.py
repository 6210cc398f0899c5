"""Two runs: what an upgrade broke is found, and two runs of one engine are the same."""

import random
from dataclasses import replace
from pathlib import Path

import pytest
from mock_engine import serving

from carpool.evals.compare import CompareError, Comparison, compare
from carpool.evals.eval_set import read_eval_set, smoke_set
from carpool.evals.finding import Severity
from carpool.evals.signals import FindingKind
from carpool.evals.template import Rendered, TemplateFacts
from tests.evals.made_run import INFO, made_run
from tests.evals.mock_version import Version
from tests.evals.runs import Runs

NUM_SEEDS = 200


def compared(runs: Runs, old: Version, new: Version, **options: object) -> Comparison:
    found = []
    for version in (old, new):
        with serving(version.reply) as engine:
            found.append(runs.run(smoke_set(), engine.url, **options))
    return compare(*found)


def alarms(comparison: Comparison) -> set[FindingKind]:
    return {each.kind for each in comparison.findings if each.severity is Severity.ALARM}


def test_a_new_version_that_does_the_same(runs: Runs) -> None:
    comparison = compared(runs, Version("1.0"), Version("1.1"))
    assert comparison.findings == ()
    assert not comparison.is_alarming


@pytest.mark.parametrize(
    ("new", "kind", "repeats"),
    [
        (Version(words_per_message=5), FindingKind.TEMPLATE_CHANGED, 1),
        (Version(has_stop=False), FindingKind.STOP_LOST, 1),
        (Version(parses_tools=False), FindingKind.TOOL_PARSER_BROKEN, 3),
    ],
    ids=["chat template", "stop token", "tool parser"],
)
def test_what_an_upgrade_broke_is_named(
    runs: Runs, new: Version, kind: FindingKind, repeats: int
) -> None:
    comparison = compared(runs, Version(), new, repeats=repeats)
    assert kind in alarms(comparison)
    assert alarms(comparison) <= {kind, FindingKind.WORSE}


def test_a_template_is_seen_by_token_ids_alone_or_by_counts_alone(runs: Runs) -> None:
    without = compared(
        runs, Version(has_usage=False), Version(has_usage=False, words_per_message=5)
    )
    (finding,) = [each for each in without.findings if each.kind is FindingKind.TEMPLATE_CHANGED]
    assert "the conversation 'user' is 11 tokens instead of 10" in finding.sentence
    counted = compared(
        runs, Version(has_tokenize=False), Version(has_tokenize=False, words_per_message=5)
    )
    assert alarms(counted) == {FindingKind.TEMPLATE_CHANGED}
    blind = Version(has_tokenize=False, has_usage=False)
    unseen = compared(runs, blind, replace(blind, words_per_message=5))
    assert [each.kind for each in unseen.findings] == [FindingKind.TEMPLATE_UNSEEN]


def test_a_template_with_a_date_in_it_is_no_alarm_on_another_day() -> None:
    today, tomorrow = (
        replace(
            made_run(random.Random(0)),
            template=TemplateFacts({"user": Rendered(token_ids=(1, day, 3))}),
            info=replace(INFO, started_at=1e9 + 86_400 * day),
        )
        for day in (0, 1)
    )
    (finding,) = compare(today, tomorrow).findings
    assert finding.severity is Severity.NOTICE
    assert "a date in the template would look like this" in finding.sentence
    same_day = replace(tomorrow, info=INFO)
    assert alarms(compare(today, same_day)) == {FindingKind.TEMPLATE_CHANGED}


@pytest.mark.parametrize("temperature", [0, 0.8])
def test_two_runs_of_one_engine_are_the_same(
    runs: Runs, tmp_path: Path, temperature: float
) -> None:
    cases = "\n".join(
        f"- {{id: case-{number}, prompt: P{number}, tags: [t{number % 2}], "
        "checks: [{contains: Paris}]}"
        for number in range(12)
    )
    path = tmp_path / "set.yaml"
    path.write_text(f"cases:\n{cases}\n")
    eval_set = read_eval_set(path)
    with serving(Version(dice=random.Random(7)).reply) as engine:
        found = [
            runs.run(eval_set, engine.url, repeats=5, temperature=temperature) for _ in range(2)
        ]
    comparison = compare(*found)
    assert not comparison.is_alarming
    assert temperature == 0 or any(0 < case.old.num_passed < 5 for case in comparison.cases)


# ---------------------------------------------------------------------- many seeds


@pytest.mark.parametrize("repeats", [1, 5])
def test_false_alarms_are_as_rare_as_promised(repeats: int) -> None:
    """At most one in a hundred; the bound leaves room for the luck of the draw."""
    num_alarms = num_notices = 0
    for seed in range(NUM_SEEDS):
        dice = random.Random(seed)
        comparison = compare(made_run(dice, repeats=repeats), made_run(dice, repeats=repeats))
        num_alarms += comparison.is_alarming
        num_notices += bool(comparison.findings)
    assert num_alarms <= 0.02 * NUM_SEEDS
    assert num_notices <= 0.04 * NUM_SEEDS  # alarms among them


def test_what_is_clearly_worse_is_found_at_any_seed() -> None:
    for seed in range(30):
        dice = random.Random(seed)
        comparison = compare(made_run(dice), made_run(dice, loss=0.6))
        assert FindingKind.WORSE in alarms(comparison)


# ---------------------------------------------------------------------- what cannot be compared


def test_runs_that_have_nothing_in_common() -> None:
    old = made_run(random.Random(0))
    new = replace(old, results=tuple(replace(each, case_id="x") for each in old.results))
    with pytest.raises(CompareError, match="have no case in common"):
        compare(old, new)


def test_a_run_that_broke_off_and_another_set_are_mentioned() -> None:
    old = made_run(random.Random(0))
    new = replace(
        old,
        results=old.results[:50],
        is_complete=False,
        info=replace(INFO, set_sha256="1", num_planned=100),
    )
    comparison = compare(old, new)
    sentences = [finding.sentence for finding in comparison.findings]
    assert sentences == [
        "the new run broke off after 50 of 100 requests",
        "the runs are of two versions of the set; 10 cases in both are compared",
    ]
    assert len(comparison.cases) == 10

"""From what is seen to what is told: pending, firing, resolved, and nothing twice."""

from dataclasses import replace

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from carpool.watch.alert import AlertState, ChangeKind, Sighting, fingerprint
from carpool.watch.alert_book import KEEP_RESOLVED_S, MAX_ALERTS, MAX_STEP_S, AlertBook
from carpool.watch.alert_rules import AlertRule
from carpool.watch.severity import Severity

STEP_S = 10.0
REPEAT_S = 3600.0
SLOW = AlertRule(name="slow", for_s=30, resolve_s=60, usual=Severity.WARNING)
FLAT = AlertRule(name="flat", for_s=0, resolve_s=0, usual=Severity.CRITICAL)
RULES = {each.name: each for each in (SLOW, FLAT)}


def seen(rule="slow", *, over=True, calm=None, **fields):
    return Sighting(
        rule=rule,
        severity=fields.pop("severity", Severity.WARNING),
        is_over=over,
        is_calm=not over if calm is None else calm,
        summary=fields.pop("summary", "it is slow"),
        model=fields.pop("model", "m"),
        **fields,
    )


class Watched:
    """A book, judged every ten seconds."""

    def __init__(self, rules=RULES, repeat_s=REPEAT_S):
        self.book = AlertBook(rules, repeat_s)
        self.now = 1_800_000_000.0

    def step(self, *sightings, seconds=STEP_S, unknown=()):
        self.now += seconds
        changes = self.book.judge(sightings, self.now, unknown)
        return [(change.kind, change.alert.rule) for change in changes]

    def steps(self, number, *sightings, **options):
        return [change for _ in range(number) for change in self.step(*sightings, **options)]

    @property
    def states(self):
        return [alert.state for alert in self.book.alerts()]


def fired():
    watched = Watched()
    assert watched.steps(4, seen()) == [(ChangeKind.FIRING, "slow")]
    return watched


def test_fires_once_when_it_has_held_for_long_enough():
    watched = Watched()
    assert watched.steps(3, seen()) == []
    assert watched.states == [AlertState.PENDING]
    assert watched.step(seen()) == [(ChangeKind.FIRING, "slow")]
    assert watched.steps(50, seen()) == []
    assert watched.states == [AlertState.FIRING]


def test_what_stops_before_that_was_nothing():
    watched = Watched()
    watched.steps(3, seen())
    watched.step()
    assert watched.states == []
    assert watched.steps(3, seen()) == []


def test_a_rule_without_a_wait_fires_at_once():
    assert Watched().step(seen("flat")) == [(ChangeKind.FIRING, "flat")]


def test_resolves_once_when_it_has_been_calm_for_long_enough():
    watched = fired()
    assert watched.steps(6) == []
    assert watched.step() == [(ChangeKind.RESOLVED, "slow")]
    assert watched.steps(5) == []
    (alert,) = watched.book.alerts()
    assert alert.state is AlertState.RESOLVED
    assert alert.resolved_at == watched.now - 50


def test_a_lull_that_is_too_short_ends_nothing():
    watched = fired()
    for _ in range(5):
        assert watched.steps(5) == []
        assert watched.step(seen()) == []
    assert watched.states == [AlertState.FIRING]


def test_between_threshold_and_calm_one_goes_on_and_none_begins():
    between = seen(over=False, calm=False)
    watched = Watched()
    assert watched.steps(20, between) == []
    assert watched.states == []
    watched = fired()
    assert watched.steps(50, between) == []
    assert watched.states == [AlertState.FIRING]


def test_one_that_goes_on_is_told_again():
    watched = fired()
    changes = watched.steps(int(REPEAT_S / STEP_S), seen())
    assert changes == [(ChangeKind.STILL_FIRING, "slow")]


def test_one_that_ends_is_not_told_again_as_going_on():
    watched = Watched(repeat_s=60)
    watched.steps(4, seen())
    assert watched.steps(7) == [(ChangeKind.RESOLVED, "slow")]


def test_one_that_comes_back_is_a_new_one():
    watched = fired()
    watched.steps(7)
    assert watched.steps(4, seen()) == [(ChangeKind.FIRING, "slow")]
    assert len(watched.book.alerts()) == 1


def test_each_model_and_person_has_its_own():
    watched = Watched()
    sightings = [seen(), seen(model="n"), seen(subject="Ana"), seen(subject="Bo")]
    assert len(watched.steps(4, *sightings)) == 4
    assert len({alert.fingerprint for alert in watched.book.alerts()}) == 4


def test_parts_of_a_fingerprint_do_not_run_into_each_other():
    prints = {
        fingerprint("a", "b", "c"),
        fingerprint("a", "bc", None),
        fingerprint("ab", None, "c"),
        fingerprint("a", None, "bc"),
        fingerprint("a", "", "bc"),
        fingerprint("a", "\udc80", None),
    }
    assert len(prints) == 6


@pytest.mark.parametrize("jump_s", [-86_400, 86_400 * 365])
def test_a_clock_that_jumps_neither_fires_nor_resolves(jump_s):
    watched = Watched({"slow": replace(SLOW, for_s=MAX_STEP_S + 1, resolve_s=MAX_STEP_S + 1)})
    watched.step(seen())
    assert watched.step(seen(), seconds=jump_s) == []
    assert watched.steps(10, seen())
    watched.step()
    assert watched.step(seconds=-jump_s) == []
    assert watched.states == [AlertState.FIRING]


def test_what_cannot_be_judged_stays_as_it_is():
    watched = fired()
    assert watched.steps(100, unknown={"slow"}) == []
    assert watched.states == [AlertState.FIRING]
    pending = Watched()
    pending.step(seen())
    assert pending.steps(100, unknown={"slow"}) == []
    assert pending.states == [AlertState.PENDING]
    assert pending.steps(100, seen(model="other"), unknown={"slow"}) == []


def test_an_acknowledged_alert_is_silent_until_then():
    watched = fired()
    (alert,) = watched.book.alerts()
    assert watched.book.acknowledge(alert.fingerprint, watched.now + 2 * REPEAT_S) is not None
    assert watched.steps(int(1.9 * REPEAT_S / STEP_S), seen()) == []
    assert watched.states == [AlertState.FIRING]
    assert watched.steps(int(1.2 * REPEAT_S / STEP_S), seen())


def test_only_an_open_alert_can_be_acknowledged():
    watched = fired()
    assert watched.book.acknowledge("0" * 16, watched.now) is None
    watched.steps(7)
    assert watched.book.acknowledge(watched.book.alerts()[0].fingerprint, watched.now) is None


def test_what_is_over_is_forgotten_after_a_day():
    watched = fired()
    watched.steps(7)
    watched.step(seconds=KEEP_RESOLVED_S + 1)
    assert watched.book.alerts() == []


def test_made_up_subjects_do_not_eat_the_memory():
    watched = Watched()
    watched.step(*(seen(subject=f"name {n}") for n in range(2 * MAX_ALERTS)))
    assert len(watched.book.alerts()) == MAX_ALERTS


def test_a_rule_that_is_switched_off_is_not_heard():
    assert Watched({"slow": SLOW}).steps(5, seen("flat")) == []


def test_the_severity_is_the_rules_or_else_the_signals():
    watched = Watched({"flat": replace(FLAT, severity=Severity.INFO), "slow": SLOW})
    watched.step(seen("flat", severity=Severity.CRITICAL), seen(severity=Severity.CRITICAL))
    severities = {alert.rule: alert.severity for alert in watched.book.alerts()}
    assert severities == {"flat": Severity.INFO, "slow": Severity.CRITICAL}


def test_the_worst_and_the_newest_come_first():
    watched = Watched({"slow": SLOW, "flat": FLAT})
    watched.steps(4, seen())
    watched.step(seen(), seen("flat", severity=Severity.CRITICAL), seen(model="new"))
    alerts = watched.book.alerts()
    assert [(alert.rule, alert.model) for alert in alerts] == [
        ("flat", "m"), ("slow", "m"), ("slow", "new"),
    ]  # fmt: skip


class AnyDay(RuleBasedStateMachine):
    """Whatever happens: who is told "firing" is told "resolved" before the next "firing"."""

    @initialize()
    def begin(self):
        self.watched = Watched(repeat_s=120.0)
        self.open: set[str] = set()

    @rule(
        sightings=st.lists(
            st.builds(
                seen,
                st.sampled_from(["slow", "flat", "none"]),
                over=st.booleans(),
                calm=st.booleans(),
                model=st.sampled_from([None, "m", "n"]),
                subject=st.sampled_from([None, "Ana"]),
            ),
            max_size=6,
        ),
        seconds=st.sampled_from([-1e6, 0.0, 5.0, 10.0, 30.0, 1e6]),
        unknown=st.sets(st.sampled_from(["slow", "flat"])),
    )
    def judge(self, sightings, seconds, unknown):
        self.watched.now += seconds
        before = {alert.fingerprint: alert for alert in self.watched.book.alerts()}
        changes = self.watched.book.judge(sightings, self.watched.now, unknown)
        keys = [change.alert.fingerprint for change in changes]
        assert len(keys) == len(set(keys))
        for change in changes:
            key = change.alert.fingerprint
            assert change.alert.rule not in unknown
            match change.kind:
                case ChangeKind.FIRING:
                    assert key not in self.open
                    self.open.add(key)
                case ChangeKind.STILL_FIRING:
                    assert key in self.open
                case ChangeKind.RESOLVED:
                    self.open.remove(key)
        for alert in self.watched.book.alerts():
            if alert.rule in unknown:
                assert alert == before[alert.fingerprint]

    @invariant()
    def those_told_are_those_that_fire(self):
        alerts = self.watched.book.alerts()
        firing = {each.fingerprint for each in alerts if each.state is AlertState.FIRING}
        assert firing == self.open


TestAnyDay = AnyDay.TestCase
TestAnyDay.settings = settings(max_examples=25, stateful_step_count=25)

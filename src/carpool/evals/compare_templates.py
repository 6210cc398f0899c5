"""Whether the same messages reach the model as they did."""

import time
from collections.abc import Iterable, Mapping

from carpool.evals.eval_run import EvalRun, Result
from carpool.evals.finding import Finding, Severity
from carpool.evals.signals import FindingKind
from carpool.evals.template import Rendered

_NUM_SHOWN = 3


def template_findings(
    old: EvalRun, new: EvalRun, pairs: Mapping[str, tuple[list[Result], list[Result]]]
) -> Iterable[Finding]:
    """By what the engines say a conversation becomes, and by the prompt tokens that they count
    for identical messages. Neither is a matter of chance."""
    seen = [*_rendered(old, new)]
    is_same_set = old.info.set_sha256 == new.info.set_sha256
    counted = _counted(pairs) if is_same_set else []
    if counted:
        shown = ", ".join(
            f"{key}: {before} -> {after}" for key, before, after in counted[:_NUM_SHOWN]
        )
        seen.append(f"prompt tokens of {len(counted)} of {len(pairs)} cases changed ({shown})")
    cases = tuple(key for key, _, _ in counted)
    if seen:
        yield _changed(old, new, seen, cases, is_counted=bool(counted))
    elif old.template.source != new.template.source and old.template.source and new.template.source:
        yield Finding(
            FindingKind.TEMPLATE_CHANGED,
            Severity.NOTICE,
            "the text of the chat template changed; the conversations tried look the same",
        )
    elif not _can_be_seen(old, new, pairs):
        yield Finding(
            FindingKind.TEMPLATE_UNSEEN,
            Severity.NOTICE,
            "a changed chat template could not be seen: the engines report no prompt tokens and "
            "have no /tokenize",
        )


def _changed(
    old: EvalRun, new: EvalRun, seen: list[str], cases: tuple[str, ...], *, is_counted: bool
) -> Finding:
    """A template with a date in it makes other prompts of equal length on another day."""
    sentence = f"the chat template changed: {'; '.join(seen)}"
    is_same_length = not is_counted and all(_is_same_length(*pair) for pair in _both(old, new))
    is_another_day = old.info.started_at // 86_400 != new.info.started_at // 86_400
    if is_same_length and is_another_day:
        days = " and ".join(
            time.strftime("%Y-%m-%d", time.gmtime(run.info.started_at)) for run in (old, new)
        )
        sentence += f". The runs are of {days}: a date in the template would look like this"
        return Finding(FindingKind.TEMPLATE_CHANGED, Severity.NOTICE, sentence)
    return Finding(FindingKind.TEMPLATE_CHANGED, Severity.ALARM, sentence, cases)


def _both(old: EvalRun, new: EvalRun) -> Iterable[tuple[Rendered, Rendered]]:
    for name, before in old.template.rendered.items():
        if (after := new.template.rendered.get(name)) is not None:
            yield before, after


def _rendered(old: EvalRun, new: EvalRun) -> Iterable[str]:
    for name, before in old.template.rendered.items():
        after = new.template.rendered.get(name)
        if after is None:
            continue
        if before.token_ids and after.token_ids and before.token_ids != after.token_ids:
            at = _first_difference(before.token_ids, after.token_ids)
            yield (
                f"the conversation {name!r} is {len(after.token_ids)} tokens instead of "
                f"{len(before.token_ids)}, and differs from token {at} on"
            )
        elif before.text and after.text and before.text != after.text:
            at = _first_difference(before.text, after.text)
            yield (
                f"the conversation {name!r} has {after.text[at : at + 30]!r} instead of "
                f"{before.text[at : at + 30]!r} at character {at}"
            )


def _counted(
    pairs: Mapping[str, tuple[list[Result], list[Result]]],
) -> list[tuple[str, str, str]]:
    """Cases of which no count is the same on both sides: a pool of unlike engines has several."""
    found = []
    for key, (old, new) in pairs.items():
        before, after = _prompt_tokens(old), _prompt_tokens(new)
        if before and after and not before & after:
            found.append((key, _listed(before), _listed(after)))
    return found


def _prompt_tokens(results: list[Result]) -> set[int]:
    return {
        result.answer.prompt_tokens
        for result in results
        if result.answer is not None and result.answer.prompt_tokens is not None
    }


def _can_be_seen(
    old: EvalRun, new: EvalRun, pairs: Mapping[str, tuple[list[Result], list[Result]]]
) -> bool:
    is_counted = any(
        _prompt_tokens(before) and _prompt_tokens(after) for before, after in pairs.values()
    )
    return is_counted or any(True for _ in _both(old, new))


def _is_same_length(before: Rendered, after: Rendered) -> bool:
    if before.token_ids and after.token_ids:
        return len(before.token_ids) == len(after.token_ids)
    return before.text is not None and after.text is not None


def _first_difference(before: "str | tuple[int, ...]", after: "str | tuple[int, ...]") -> int:
    shorter = min(len(before), len(after))
    return next((at for at in range(shorter) if before[at] != after[at]), shorter)


def _listed(counts: set[int]) -> str:
    return "/".join(map(str, sorted(counts)))

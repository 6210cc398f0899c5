"""Where a person stands in the queues."""

from collections import Counter
from collections.abc import Iterator, Sequence

from carpool.gateway.live_state import Place
from carpool.store.lane import Lane


def standing_of(person_id: str, places: Sequence[Place]) -> Iterator[tuple[Place, int]]:
    """What the person has waiting of all `places`, in order of arrival, each with how many would
    go before it if nobody else came: fair rounds within its lane, all of the interactive lane
    before the batch lane."""
    waiting = [place for place in places if place.is_waiting]
    counts: dict[tuple[str, Lane], Counter[str]] = {}
    for place in waiting:
        counts.setdefault((place.model, place.lane), Counter())[place.person_id] += 1
    num_mine: Counter[tuple[str, Lane]] = Counter()
    for place in waiting:
        if place.person_id != person_id:
            continue
        queue = (place.model, place.lane)
        mine = num_mine[queue]
        others = sum(
            min(count, mine + 1) for each, count in counts[queue].items() if each != person_id
        )
        ahead = counts.get((place.model, Lane.INTERACTIVE), Counter()).total()
        yield place, mine + others + (ahead if place.lane is Lane.BATCH else 0)
        num_mine[queue] += 1

"""What a DRAM tier in front of the storage would hit: a run's turns through a least-recently-used cache (paper section 8.2)."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from dualpath.workload.turn_table import TurnTable


class Visit(NamedTuple):
    """A turn as the tier sees it: whose it is, when it was sent, and the tokens of its prompt."""

    agent: int
    submitted_s: float
    prompt_tokens: int


def visits_of(turns: TurnTable) -> list[Visit]:
    """A run's turns in the order of their submission."""
    columns = turns.columns
    visits = map(Visit, columns.agent, columns.submitted_s, columns.prompt_tokens)
    return sorted(visits, key=lambda visit: visit.submitted_s)


def hit_rate(
    visits: Iterable[Visit], capacity_tokens: float, start_s: float = 0.0, end_s: float = float("inf")
) -> float | None:
    """Share of the tokens that an agent sends again which the tier still holds; None when nothing is sent again.

    The tier holds whole contexts, one an agent, as long as its last prompt (outputs are left out: a percent), for the whole
    cluster; the least recently used go first. A context larger than the tier pushes out everything, itself included: so
    a larger tier always holds what a smaller one does. First turns send nothing again and do not count.

    Args:
        visits: in order of time.
        capacity_tokens: of the tier.
        start_s, end_s: only turns that were sent in between count; earlier ones fill the tier.
    """
    held: OrderedDict[int, int] = OrderedDict()
    held_tokens = 0
    last_prompt: dict[int, int] = {}
    again = found = 0
    for agent, submitted_s, prompt in visits:
        in_tier = held.pop(agent, 0)
        if start_s <= submitted_s < end_s:
            again += min(last_prompt.get(agent, 0), prompt)
            found += min(in_tier, prompt)
        last_prompt[agent] = held[agent] = prompt
        held_tokens += prompt - in_tier
        while held_tokens > capacity_tokens:
            held_tokens -= held.popitem(last=False)[1]
    return found / again if again else None


def hit_rates(
    turns: TurnTable, tier_bytes: Sequence[float], token_bytes: int, start_s: float = 0.0, end_s: float = float("inf")
) -> tuple[float, ...]:
    """The hit rate of each size of tier, of the turns sent in between; 0 when nothing is sent again."""
    if not tier_bytes:
        return ()
    visits = visits_of(turns)
    return tuple(hit_rate(visits, size / token_bytes, start_s, end_s) or 0.0 for size in tier_bytes)

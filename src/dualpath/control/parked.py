"""Fetches for leaders whose long polls are parked: these end as soon as there is work (paper section 6)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from dualpath.control.members import Members
from dualpath.control.turn_record import TurnRecord
from dualpath.scheduling.central import CentralScheduler
from dualpath.scheduling.decisions import Decision
from dualpath.scheduling.log import RecordingScheduler
from dualpath.types import GroupName, Role


class ParkedLeaders:
    """Knows which leaders could find something, so that an event costs few fetches and not one for every group."""

    def __init__(self, central: CentralScheduler | RecordingScheduler, members: Members) -> None:
        self._central = central
        self._members = members
        self._prefill_tokens: Counter[GroupName] = Counter()

    def count_prefill(self, turn: TurnRecord, group: GroupName | None) -> None:
        """The turn's prefill is now this group's to do, or nobody's."""
        if turn.prefill_group is not None:
            self._prefill_tokens[turn.prefill_group] -= turn.prompt_tokens
        turn.prefill_group = group
        if group is not None:
            self._prefill_tokens[group] += turn.prompt_tokens

    def everyone(self) -> Iterator[Decision]:
        """What all leaders find."""
        if self._central.has_waiting:
            yield from self.prefill()
            yield from self.decode()

    def prefill(self) -> Iterator[Decision]:
        """What prefill leaders find. One takes all it can, so that the one with the least to do comes first."""
        for group in sorted(self._members.groups(Role.PREFILL), key=self._prefill_tokens.__getitem__):
            if not self._central.waiting_for(Role.PREFILL):
                return
            yield from self._central.fetch_prefill(group, ())

    def decode(self) -> Iterator[Decision]:
        """What decode leaders find: any one's fetch gives all that waits to groups, then those with a backlog are asked."""
        if self._central.waiting_for(Role.DECODE) and (groups := self._members.groups(Role.DECODE)):
            yield from self._central.fetch_decode(groups[0], ())
        for group in self._central.backlogged():
            yield from self._central.fetch_decode(group, ())

    def of_engine(self, name: str) -> Iterator[Decision]:
        """What the engine's leader finds now that it has got room; the others would find no more than before."""
        engine = self._members.find_engine(name)
        if engine is None or not self._central.has_waiting:
            return
        fetch = self._central.fetch_prefill if engine.role is Role.PREFILL else self._central.fetch_decode
        yield from fetch(GroupName(engine.join.group), ())

"""Coding sessions of kv-cache-tester: a JSON document a session, prompts as block hashes local to it."""

from __future__ import annotations

from collections.abc import Sequence

from dualpath.workload.formats.fields import Record
from dualpath.workload.formats.requests import PrefixTree, Request, turns_of
from dualpath.workload.trajectory import Trajectory


def read_kv_cache_tester(records: Sequence[Record]) -> list[Trajectory]:
    """Documents ``{"id", "block_size", "requests": [{"in", "out", "t", "hash_ids", "think_time"}, …]}``.

    Without ``think_time`` the gap lasts from start to start and so includes the previous answer.

    Raises:
        TraceError: also for nested sub-agents, which are conversations of their own.
    """
    return [_session(record) for record in records]


def _session(record: Record) -> Trajectory:
    block_tokens = record.count("block_size", least=1)
    seen = PrefixTree()
    requests: list[Request] = []
    previous_start_s = 0.0
    for entry in record.children("requests"):
        if "requests" in entry.value:
            raise entry.error("type", "nested sub-agents are not supported; store them as documents of their own")
        start_s = entry.number("t")
        hash_ids = entry.counts("hash_ids")
        requests.append(
            Request(
                prompt_tokens=entry.count("in", least=1),
                output_tokens=entry.count("out"),
                gap_s=entry.duration("think_time", max(0.0, start_s - previous_start_s)),
                shared_tokens=len(seen.known(hash_ids)) * block_tokens,
            )
        )
        seen.add(hash_ids)
        previous_start_s = start_s
    return record.trajectory(record.text("id"), turns_of(requests, block_tokens))

"""Trajectories of mini-swe-agent: chat messages, assistant messages with the provider's usage."""

from __future__ import annotations

from collections.abc import Sequence

from dualpath.workload.formats.fields import Record
from dualpath.workload.formats.requests import Request, turns_of
from dualpath.workload.trajectory import Trajectory


def read_mini_swe_agent(records: Sequence[Record]) -> list[Trajectory]:
    """Documents ``{"instance_id", "messages": [{"role", "content", "usage"}, …]}``, a turn an assistant message.

    ``usage`` is taken from the message itself or from ``extra.response``, where mini-swe-agent stores it. The format
    has no times: gaps are 0. Without ``instance_id`` the file's name identifies the run.
    """
    return [_run(record) for record in records]


def _run(record: Record) -> Trajectory:
    answers = [message for message in record.children("messages") if message.text("role") == "assistant"]
    if not answers:
        raise record.error("messages", "no assistant message, so no turn")
    turns = turns_of([_request(_usage(answer)) for answer in answers])
    return record.trajectory(record.text("instance_id", record.name), turns)


def _usage(answer: Record) -> Record:
    if "usage" not in answer.value and "extra" in answer.value:
        return answer.child("extra").child("response").child("usage")
    return answer.child("usage")


def _request(usage: Record) -> Request:
    details = usage.child("completion_tokens_details", {})
    return Request(
        prompt_tokens=usage.count("prompt_tokens", least=1),
        output_tokens=usage.count("completion_tokens"),
        reasoning_tokens=details.count("reasoning_tokens", 0),
    )

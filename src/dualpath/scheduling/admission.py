"""What an engine could hold at most, and why a request is refused at once (paper section 6; memory as in section 2)."""

from __future__ import annotations

from collections.abc import Iterable

from dualpath.scheduling.decisions import EngineDescription, RequestDescription
from dualpath.scheduling.ledger import UNLIMITED, Capacity, EngineState, GroupState, RequestState
from dualpath.scheduling.limits import SchedulerLimits
from dualpath.scheduling.readside import ReadQueue
from dualpath.settings import ReadSidePolicy
from dualpath.types import Role


def request_state(description: RequestDescription, limits: SchedulerLimits, now_s: float) -> RequestState:
    """A request's books: a decode engine reserves its prompt's blocks and one more, and ends with KV of prompt + output − 1.

    Raises:
        ValueError: the hit is no whole blocks, or leaves no token to compute.
    """
    prompt, hit, block = description.prompt_tokens, description.hit_tokens, limits.block_tokens
    if not 0 <= hit < prompt or hit % block:
        raise ValueError(f"a hit of {hit} of {prompt} tokens is not whole blocks that leave a token to compute")
    context_tokens = prompt + description.max_output_tokens - 1
    return RequestState(
        request_id=description.request_id,
        prompt_tokens=prompt,
        context_tokens=context_tokens,
        hit_tokens=hit,
        demand_blocks=1 - (-prompt // block),
        submitted_s=now_s,
        prefill_load_tokens=limits.prefill_load(prompt, hit),
    )


def engine_state(
    engine: EngineDescription, group: GroupState, read_queue: ReadQueue, limits: SchedulerLimits, allowance: int
) -> EngineState:
    """An engine's books as it joins."""
    return EngineState(
        description=engine,
        name=engine.name,
        decodes=engine.role is Role.DECODE,
        group=group,
        read_queue=read_queue,
        capacity=engine_capacity(engine, limits),
        room_blocks=engine.kv_blocks - limits.watermark_blocks(engine.kv_blocks),
        buffer_tokens=engine.buffer_blocks * limits.block_tokens,
        allowance=allowance,
    )


def engine_capacity(engine: EngineDescription, limits: SchedulerLimits) -> Capacity:
    """The largest request that ``engine`` could hold with nothing else on it."""
    kv_tokens, buffer_tokens = engine.kv_blocks * limits.block_tokens, engine.buffer_blocks * limits.block_tokens
    if engine.role is Role.DECODE:
        reserved_blocks = limits.watermark_blocks(engine.kv_blocks) + 1
        return Capacity(min(kv_tokens - reserved_blocks * limits.block_tokens, buffer_tokens), kv_tokens, UNLIMITED)
    reads_all = limits.read_side is ReadSidePolicy.PREFILL
    return Capacity(kv_tokens or UNLIMITED, UNLIMITED, buffer_tokens if reads_all else UNLIMITED)


def refusal(request: RequestState, engines: Iterable[EngineDescription], limits: SchedulerLimits) -> str:
    """Which limit no engine of this role meets, and by how much."""
    prompt_blocks, context_blocks = limits.blocks(request.prompt_tokens), limits.blocks(request.context_tokens)
    needs: list[tuple[str, int, int]] = []
    for engine in engines:
        reserve = limits.watermark_blocks(engine.kv_blocks)
        if engine.role is Role.DECODE:
            needs += [
                ("KV blocks above the watermark of a decode engine", request.demand_blocks, engine.kv_blocks - reserve),
                ("buffer blocks of a decode engine", prompt_blocks, engine.buffer_blocks),
                ("KV blocks of a decode engine for prompt and output", context_blocks, engine.kv_blocks),
            ]
        else:
            needs += [
                ("KV blocks of a prefill engine", prompt_blocks, engine.kv_blocks or UNLIMITED),
                ("buffer blocks of a prefill engine for the hit", limits.blocks(request.hit_tokens), engine.buffer_blocks),
            ]
    most: dict[str, tuple[int, int]] = {}
    for what, need, have in needs:
        most[what] = need, max(have, most.get(what, (0, 0))[1])
    unmet = [f"{need} {what}, the most there is {have}" for what, (need, have) in most.items() if need > have]
    size = f"a prompt of {request.prompt_tokens} tokens in blocks of {limits.block_tokens}"
    return f"{size} needs {'; '.join(unmet) or 'a larger engine: none meets all limits at once'}"

"""What an engine could hold at most, and why a request is refused at once (paper section 6; memory as in section 2)."""

from __future__ import annotations

from collections.abc import Iterable

from dualpath.scheduling.decisions import EngineDescription, RequestDescription
from dualpath.scheduling.ledger import UNLIMITED, Capacity, RequestState
from dualpath.scheduling.limits import SchedulerLimits
from dualpath.settings import ReadSidePolicy
from dualpath.types import Role


def request_state(description: RequestDescription, limits: SchedulerLimits, now_s: float) -> RequestState:
    """A request's books: on a decode engine it needs its prompt's blocks and one more, and ends with KV of prompt + output − 1.

    Raises:
        ValueError: the hit is no whole blocks, or leaves no token to compute.
    """
    prompt, hit, block = description.prompt_tokens, description.hit_tokens, limits.block_tokens
    if not 0 <= hit < prompt or hit % block:
        raise ValueError(f"a hit of {hit} of {prompt} tokens is not whole blocks that leave a token to compute")
    prompt_blocks = -(-prompt // block)
    context_blocks = -(-(prompt + description.max_output_tokens - 1) // block)
    return RequestState(
        description.request_id, prompt, hit, prompt_blocks, context_blocks, hit // block, prompt_blocks + 1, now_s
    )


def engine_capacity(engine: EngineDescription, limits: SchedulerLimits) -> Capacity:
    """The largest request that ``engine`` could hold with nothing else on it."""
    if engine.role is Role.DECODE:
        pool_blocks = engine.kv_blocks - limits.watermark_blocks(engine.kv_blocks)
        return Capacity(min(pool_blocks - 1, engine.buffer_blocks), engine.kv_blocks, UNLIMITED)
    reads_all = limits.read_side is ReadSidePolicy.PREFILL
    return Capacity(engine.kv_blocks or UNLIMITED, UNLIMITED, engine.buffer_blocks if reads_all else UNLIMITED)


def refusal(request: RequestState, engines: Iterable[EngineDescription], limits: SchedulerLimits) -> str:
    """Which limit no engine of this role meets, and by how much."""
    needs: list[tuple[str, int, int]] = []
    for engine in engines:
        reserve = limits.watermark_blocks(engine.kv_blocks)
        if engine.role is Role.DECODE:
            needs += [
                ("KV blocks above the watermark of a decode engine", request.demand_blocks, engine.kv_blocks - reserve),
                ("buffer blocks of a decode engine", request.prompt_blocks, engine.buffer_blocks),
                ("KV blocks of a decode engine for prompt and output", request.context_blocks, engine.kv_blocks),
            ]
        else:
            needs += [
                ("KV blocks of a prefill engine", request.prompt_blocks, engine.kv_blocks or UNLIMITED),
                ("buffer blocks of a prefill engine for the hit", request.hit_blocks, engine.buffer_blocks),
            ]
    most: dict[str, tuple[int, int]] = {}
    for what, need, have in needs:
        most[what] = need, max(have, most.get(what, (0, 0))[1])
    unmet = [f"{need} {what}, the most there is {have}" for what, (need, have) in most.items() if need > have]
    size = f"a prompt of {request.prompt_tokens} tokens in blocks of {limits.block_tokens}"
    return f"{size} needs {'; '.join(unmet) or 'a larger engine: none meets all limits at once'}"

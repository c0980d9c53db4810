"""The simulator's free parameters: what no data sheet or kernel table says, each with its reason (paper section 7)."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any


def parameter(default: float, unit: str, reason: str, *, calibrated: bool = False) -> Any:
    """A free parameter; ``calibrated`` ones were set so that the simulator meets one of three figures of the paper."""
    return field(default=default, metadata={"unit": unit, "reason": reason, "calibrated": calibrated})


@dataclass(frozen=True, slots=True)
class Calibration:
    """One set for all clusters, models and figures."""

    mixture_factor: float = parameter(
        1.95,
        "x",
        "experts and all-to-all of a prefill step against the kernel tables, which know balanced experts and no other "
        "kernels (set on Oracle, 4,096 agents)",
        calibrated=True,
    )
    request_context_s: float = parameter(
        1.5e-3 / 32768,
        "s a layer and token of context",
        "least attention time of one request: the paper's Oracle gets through a quarter of the turns that the kernel tables "
        "allow, so a request costs in proportion to its context (its KV is gathered and converted in every layer)",
    )
    storage_share: float = parameter(
        0.66,
        "of the client's ceiling",
        "storage reads against what a 3FS client can read (set on Basic, 2,048 agents)",
        calibrated=True,
    )
    turn_s: float = parameter(
        0.9,
        "s",
        "client, tokenizing, hashing and matching of a prompt of tens of thousands of tokens (set on Oracle, 512 agents)",
        calibrated=True,
    )
    handoff_s: float = parameter(0.12, "s", "from the first token until the decode engine has the request")
    read_latency_s: float = parameter(0.002, "s", "first byte of a storage read")
    prefill_kv_bytes: float = parameter(
        3.3e9, "bytes a GPU", "HBM left for a prefill batch beside weights, activations and communication buffers of DS 660B"
    )
    decode_kv_bytes: float = parameter(26e9, "bytes a GPU", "HBM for KV beside weights and graphs on decode GPUs of DS 660B")
    client_ceiling: float = parameter(40 * 2**30, "bytes/s", "a 3FS client on a 400 Gbps NIC")
    collective_share: float = parameter(
        3.0, "bytes a hidden value", "all-to-all: dispatch in fp8, combine in bf16, to two remote nodes of experts"
    )


DEFAULT = Calibration()


def parameters(calibration: Calibration) -> list[tuple[str, float, str, str, bool]]:
    """Every parameter: name, value, unit, reason, and whether it was set on a figure."""
    return [
        (one.name, getattr(calibration, one.name), one.metadata["unit"], one.metadata["reason"], one.metadata["calibrated"])
        for one in fields(calibration)
    ]

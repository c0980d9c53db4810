"""Step times fitted from published kernel tables (provisional values until the tool has run)."""

from __future__ import annotations

from dataclasses import dataclass

from dualpath.costmodel.timing import DecodeTime, PrefillTime


@dataclass(frozen=True, slots=True)
class KernelFit:
    """A model on a GPU."""

    prefill: PrefillTime
    decode: DecodeTime
    source: str
    version: str
    prefill_error: float
    mixture_error: float
    decode_error: float


_DS = KernelFit(
    PrefillTime(61, 1.7e-6, 22e-12, 1.53e-3, 0.0, 0.8e-3, 1.49e-6),
    DecodeTime(61, 0.357e-3, 0.0043e-3, 0.0, 0.0033e-3),
    "provisional",
    "0",
    0.0,
    0.0,
    0.0,
)
KERNELS: dict[tuple[str, str], KernelFit] = {("ds-660b", "h200"): _DS, ("deepseek-v3.2", "h200"): _DS}

"""A model on a kind of node, as far as simulating it needs: KV sizes, step times, memory (paper sections 3 and 7)."""

from __future__ import annotations

from dataclasses import dataclass, replace

from dualpath.costmodel.calibration import Calibration
from dualpath.costmodel.catalogue import NODES, SIZES, Node
from dualpath.costmodel.kernels import KERNELS
from dualpath.costmodel.shapes import ModelCost, ModelSize
from dualpath.costmodel.timing import DecodeTime, PrefillTime
from dualpath.errors import SettingsError

PREFILL_COMPUTE, ATTENTION_COMPUTE, MEMORY_SHARE = 0.4, 0.25, 0.7
"""Without kernel tables: shares of the peak FLOPs that matrices and attention reach, and of the memory's bandwidth."""
LAYER_OVERHEAD_S = 20e-6
SCALED, SCALED_LAYERS = "ds-27b", 30
PAPERS_OWN = frozenset({"ds-660b", "deepseek-v3.2"})
HBM_SHARE, WORKSPACE_BYTES = 0.9, 8e9
"""Without a better number: KV gets this share of HBM less weights and workspace."""


@dataclass(frozen=True, slots=True)
class ServedModel:
    """A model on nodes of one kind.

    Attributes:
        layers, token_layer_bytes: KV of a token.
        prefill, decode: step times of its engines.
        prefill_kv_bytes, decode_kv_bytes: HBM of a GPU that is left for KV.
        collective_bytes: what a token's all-to-all moves through a compute NIC, in each direction.
        source: where the step times come from.
    """

    layers: int
    token_layer_bytes: int
    prefill: PrefillTime
    decode: DecodeTime
    prefill_kv_bytes: float
    decode_kv_bytes: float
    prefill_step_nodes: int
    decode_step_nodes: int
    collective_bytes: float
    source: str


@dataclass(frozen=True, slots=True)
class Placement:
    """Nodes of one kind (``hardware`` is its name in the catalogue, ``node`` perhaps changed) that serve a model."""

    hardware: str
    node: Node
    prefill_nodes: int
    decode_nodes: int


def served(name: str | None, cost: ModelCost, size: ModelSize, on: Placement, free: Calibration) -> ServedModel:
    """The model with kernel tables where there are any (scaled from the same architecture by data sheets), else by roofline.

    Weights are spread over as many nodes of a role as the model wants, or as there are.

    Raises:
        SettingsError: the weights do not fit into the GPUs of a step group.
    """
    node = on.node
    size = replace(
        size,
        prefill_step_nodes=min(size.prefill_step_nodes, on.prefill_nodes),
        decode_step_nodes=min(size.decode_step_nodes, on.decode_nodes),
    )
    usual = SIZES.get(name or "", size)
    timing = _tabled(name, size.hidden_size > 0, on, free)
    paper = name in PAPERS_OWN
    prefill, decode, source = timing or (*_roofline(cost, size, node), "roofline of the data sheet")
    return ServedModel(
        layers=size.layers,
        token_layer_bytes=-(-cost.token_bytes // size.layers),
        prefill=prefill,
        decode=decode,
        prefill_kv_bytes=_kv_bytes(
            "prefill", size, node, size.prefill_step_nodes, usual.prefill_step_nodes, free.prefill_kv_bytes if paper else None
        ),
        decode_kv_bytes=_kv_bytes(
            "decode", size, node, size.decode_step_nodes, usual.decode_step_nodes, free.decode_kv_bytes if paper else None
        ),
        prefill_step_nodes=size.prefill_step_nodes,
        decode_step_nodes=size.decode_step_nodes,
        collective_bytes=size.layers * size.hidden_size * free.collective_share,
        source=source,
    )


def _scaled_down(prefill: PrefillTime, decode: DecodeTime) -> tuple[PrefillTime, DecodeTime]:
    """DS 27B from DS 660B: a quarter of the heads, a quarter of the experts' work, shorter fixed parts.

    Fixed parts are latencies of kernels and of an all-to-all within a node instead of two; half is an estimate.
    """
    return (
        PrefillTime(
            layers=SCALED_LAYERS,
            token_s=prefill.token_s / 4,
            pair_s=prefill.pair_s / 4,
            floor_s=prefill.floor_s / 2,
            request_context_s=prefill.request_context_s / 2,
            mixture_s=prefill.mixture_s * 0.6,
            mixture_token_s=prefill.mixture_token_s / 4,
            step_s=prefill.step_s,
        ),
        DecodeTime(
            layers=SCALED_LAYERS,
            layer_s=decode.layer_s / 2,
            request_s=decode.request_s / 4,
            context_s=decode.context_s / 4,
            shared_request_s=decode.shared_request_s / 4,
            step_s=decode.step_s,
        ),
    )


def _kv_bytes(role: str, size: ModelSize, node: Node, nodes: int, usual_nodes: int, stated: float | None) -> float:
    """HBM for KV: as stated for an 80 GB GPU of the usual group, and what differs from it; or what weights leave."""
    weights = size.weight_bytes / (nodes * node.gpus)
    free = HBM_SHARE * node.hbm_bytes - weights - WORKSPACE_BYTES
    if stated is not None:
        usual = NODES["h800"]
        more_weights = weights - size.weight_bytes / (usual_nodes * usual.gpus)
        free = stated + node.hbm_bytes - usual.hbm_bytes - more_weights
    if free <= 0:
        held = f"{weights / 1e9:.0f} GB of weights beside workspace and KV"
        have = f"a GPU of {node.hbm_bytes / 1e9:.0f} GB cannot hold {held}"
        raise SettingsError(f"{role}: {have}: use more {role} nodes, more GPUs a node, or other hardware")
    return free


def _tabled(
    name: str | None, has_experts: bool, on: Placement, free: Calibration
) -> tuple[PrefillTime, DecodeTime, str] | None:
    """Kernel tables of the model: of this GPU, or of another of its architecture.

    From one GPU to another only reading the context in decode goes with memory bandwidth: the tables of H100 and H200
    differ by 15 % for a decode layer and hardly at all in prefill.
    """
    hardware, node = on.hardware, on.node
    tabled = "ds-660b" if name == SCALED else name or ""
    for gpu in (hardware, *_SAME_ARCHITECTURE.get(hardware, ())):
        fit = KERNELS.get((tabled, gpu))
        if fit is None:
            continue
        prefill, decode = replace(fit.prefill, request_context_s=free.request_context_s), fit.decode
        if name == SCALED:
            prefill, decode = _scaled_down(prefill, decode)
        more = free.mixture_factor if has_experts else 1.0
        slower = NODES[gpu].hbm_bandwidth / node.hbm_bandwidth
        return (
            replace(prefill, mixture_s=more * prefill.mixture_s, mixture_token_s=more * prefill.mixture_token_s),
            replace(decode, context_s=slower * decode.context_s),
            f"kernel tables of {gpu}: {fit.source} {fit.version}",
        )
    return None


_SAME_ARCHITECTURE = {"h800": ("h100", "h200"), "h100": ("h200",), "h200": ("h100",)}


def _roofline(cost: ModelCost, size: ModelSize, node: Node) -> tuple[PrefillTime, DecodeTime]:
    """Step times from FLOPs and bytes alone."""
    flops, memory = node.flops, node.hbm_bandwidth * MEMORY_SHARE
    layer_weights = size.weight_bytes / size.layers
    token_layer_bytes = cost.token_bytes / size.layers
    prefill = PrefillTime(
        layers=size.layers,
        token_s=0.0,
        pair_s=cost.context_flops / size.layers / (ATTENTION_COMPUTE * flops),
        floor_s=LAYER_OVERHEAD_S,
        request_context_s=token_layer_bytes / memory,
        mixture_s=LAYER_OVERHEAD_S + layer_weights / (size.prefill_step_nodes * node.gpus) / memory,
        mixture_token_s=cost.token_flops / size.layers / (PREFILL_COMPUTE * flops),
    )
    decode = DecodeTime(
        layers=size.layers,
        layer_s=LAYER_OVERHEAD_S + layer_weights / (size.decode_step_nodes * node.gpus) / memory,
        request_s=0.0,
        context_s=token_layer_bytes / memory,
        shared_request_s=cost.token_flops / size.layers / (PREFILL_COMPUTE * flops),
    )
    return prefill, decode

"""What a planned cluster consists of, from the command line: nodes, hardware, model, trace."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

from dualpath.costmodel.catalogue import SIZES, Node, model_named
from dualpath.costmodel.families import cost_of_config, size_of_config
from dualpath.costmodel.shapes import ModelCost, ModelSize
from dualpath.dataflow.bounds import ClusterShape
from dualpath.errors import ModelError, SettingsError
from dualpath.settings import parse_bytes

_CLUSTER = re.compile(r"(\d+)P(\d+)D", re.IGNORECASE)


def overridden(node: Node, gpus: int | None, snic: str | None, cnic: str | None, dram: str | None) -> Node:
    """The node with what was given instead; bandwidths as text such as ``50GB/s``.

    Raises:
        SettingsError: a bandwidth is none, or not positive; names the flag.
    """
    rates = {"snic_bandwidth": snic, "cnic_bandwidth": cnic, "dram_bandwidth": dram}
    given: dict[str, Any] = {name: float(_rate(name, text)) for name, text in rates.items() if text is not None}
    return replace(node, **given) if gpus is None else replace(node, gpus=gpus, **given)


def _rate(name: str, text: str) -> int:
    flag = f"--{name.replace('_', '-')}"
    rate = parse_bytes(text, flag)
    if rate <= 0:
        raise SettingsError(f"{flag} must be positive, not {text!r}")
    return rate


def is_named(model: str) -> bool:
    """Whether this is a name of the catalogue, not a file or directory."""
    return not Path(model).exists()


def cost_and_size(model: str, element_bytes: int) -> tuple[ModelCost, ModelSize]:
    """A model of the catalogue, or what a ``config.json`` (or its directory) describes.

    Raises:
        SettingsError: there is no such model; suggests what is meant, perhaps.
        ModelError: the file is no configuration of a known family.
    """
    if is_named(model):
        return model_named(model), SIZES[model.lower()]
    path = Path(model)
    config = path / "config.json" if path.is_dir() else path
    try:
        values = json.loads(config.read_text())
    except (OSError, ValueError) as error:
        raise ModelError(f"{config}: no readable model configuration: {error}") from error
    if not isinstance(values, dict):
        raise ModelError(f"{config}: no model configuration: it is no JSON object")
    return cost_of_config(values, element_bytes=element_bytes), size_of_config(values, element_bytes=element_bytes)


def cluster_nodes(cluster: str) -> tuple[int, int]:
    """Prefill and decode nodes of a text such as ``2P4D``.

    Raises:
        SettingsError: it says no such thing, or a number is 0.
    """
    match = _CLUSTER.fullmatch(cluster.strip())
    if match is None or not int(match[1]) or not int(match[2]):
        raise SettingsError(f"--cluster: {cluster!r} does not say prefill and decode nodes, such as 2P4D")
    return int(match[1]), int(match[2])


def shape_of(cluster: str, node: Node) -> ClusterShape:
    """The cluster in the paper's symbols."""
    prefill_nodes, decode_nodes = cluster_nodes(cluster)
    return ClusterShape(
        prefill_nodes=prefill_nodes,
        decode_nodes=decode_nodes,
        engines_per_node=node.gpus,
        cnic_bandwidth=node.cnic_bandwidth,
        snic_share=node.snic_bandwidth / node.cnic_bandwidth,
        dram_bandwidth=node.dram_bandwidth,
    )

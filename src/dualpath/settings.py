"""Every knob, as nested frozen dataclasses; each field is a key of the TOML file and a flag of the same name.

Field names are unique over all sections, so that ``--block-tokens`` can mean one thing only. Sizes say in their help
whether they count per engine, per node or per cluster.
"""

from __future__ import annotations

import re
from dataclasses import MISSING, Field, dataclass, field, fields
from decimal import Decimal
from enum import StrEnum
from typing import Any

from dualpath.errors import SettingsError

_UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12, "ki": 2**10, "mi": 2**20, "gi": 2**30, "ti": 2**40}
_QUANTITY = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([kmgt]i?)?b?(/s)?\s*", re.IGNORECASE)


def parse_bytes(text: object, key: str = "size") -> int:
    """Bytes, or bytes a second, from text like ``64MB/s``, ``1.5GiB`` or ``4096``, or from a number.

    Raises:
        SettingsError: this is no such quantity.
    """
    match = _QUANTITY.fullmatch(str(text))
    if match is None:
        raise SettingsError(f"{key}: {text!r} is no size; write bytes, or a number with a unit as in 64MB, 1.5GiB, 64MB/s")
    return int(Decimal(match[1]) * _UNITS[(match[2] or "").lower()])


class ReadSidePolicy(StrEnum):
    """Who reads a hit from storage."""

    PREFILL = "prefill"
    ROUND_ROBIN = "round-robin"
    SHORTER_QUEUE = "shorter-queue"
    SPLIT = "split"


class Placement(StrEnum):
    """How engines are chosen."""

    ROUND_ROBIN = "round-robin"
    ADAPTIVE = "adaptive"


class Dtype(StrEnum):
    """Arithmetic and KV precision."""

    AUTO = "auto"
    FLOAT64 = "float64"
    FLOAT32 = "float32"
    BFLOAT16 = "bfloat16"


def knob(default: Any, help: str, *, bytes: bool = False, minimum: float | None = None, maximum: float | None = None) -> Any:
    """A field with its help text; ``bytes`` fields also take text like ``64MB``. ``knobs`` checks values by these rules."""
    return field(default=default, metadata={"help": help, "bytes": bytes, "minimum": minimum, "maximum": maximum})


@dataclass(frozen=True, slots=True)
class CacheSettings:
    """KV blocks and the prefix index."""

    block_tokens: int = knob(64, "tokens in a KV block; only whole blocks are hits", minimum=1)
    pending_timeout_s: float = knob(2.0, "longest wait of a turn for blocks that are just being written", minimum=0)


@dataclass(frozen=True, slots=True)
class StoreSettings:
    """The block store and its storage NICs."""

    store: str | None = knob(None, "directory of the block store (any POSIX mount); default: a temporary one")
    store_capacity: int = knob(16 * 2**30, "most bytes of blocks in the store, per cluster", bytes=True, minimum=1)
    snic_bandwidth: int | None = knob(
        None, "limit of each node's storage NIC, reads and writes apart, e.g. 64MB/s", bytes=True, minimum=1
    )
    storage_threads: int = knob(2, "I/O threads per engine", minimum=1)
    verify_checksums: bool = knob(True, "check every block's checksum when it is read")


@dataclass(frozen=True, slots=True)
class SchedulingSettings:
    """The global scheduler (paper section 6)."""

    read_side: ReadSidePolicy = knob(ReadSidePolicy.SHORTER_QUEUE, "who reads a hit from storage")
    placement: Placement = knob(Placement.ADAPTIVE, "how engines are chosen")
    alpha_s: float = knob(3.0, "read queue (seconds of storage reading) above which a prefill node is avoided", minimum=0)
    beta_s: float = knob(5.0, "work (seconds of prefill) above which a prefill engine gets nothing more", minimum=0)
    storage_tokens_per_s: float | None = knob(
        None, "tokens of KV a node reads a second; default: profile or SNIC limit", minimum=0.001
    )
    prefill_tokens_per_s: float | None = knob(
        None, "tokens a prefill engine gets through a second; default: profile", minimum=0.001
    )
    prefill_new_weight: float = knob(
        0.0,
        "when prefill engines are compared, a request counts as at least so many tokens for each one to compute (0: hits and "
        "new tokens count alike, as in the paper)",
        minimum=0,
        maximum=10_000,
    )
    decode_free_watermark: float = knob(
        0.02, "share of a decode engine's KV memory that placement keeps free", minimum=0, maximum=0.9
    )
    fetch_interval_s: float = knob(0.05, "how often leaders report loads and ask for work", minimum=0.001)


@dataclass(frozen=True, slots=True)
class PrefillSettings:
    """Prefill engines."""

    layerwise: bool = knob(True, "keep one layer of the batch's KV on the device at a time")
    quota_s: float = knob(0.3, "compute quota: predicted attention time of one forward batch", minimum=0)
    prefill_kv_memory: int = knob(256 * 2**20, "device bytes for KV during prefill, per engine", bytes=True, minimum=1)
    prefill_buffer: int = knob(256 * 2**20, "DRAM buffer of a prefill engine, per engine", bytes=True, minimum=1)
    max_batch_tokens: int = knob(8192, "most new tokens in one forward batch", minimum=1)


@dataclass(frozen=True, slots=True)
class DecodeSettings:
    """Decode engines."""

    decode_kv_memory: int = knob(512 * 2**20, "device bytes of the paged KV pool, per engine", bytes=True, minimum=1)
    decode_buffer: int = knob(512 * 2**20, "DRAM buffer of a decode engine, per engine", bytes=True, minimum=1)
    write_back_buffer: int = knob(32 * 2**20, "staging for blocks completed during decode, per engine", bytes=True, minimum=1)
    max_decode_batch: int = knob(64, "most sequences in one decode step", minimum=1)


@dataclass(frozen=True, slots=True)
class DeadlineSettings:
    """How long anything may take."""

    request_timeout_s: float = knob(600.0, "longest life of a turn, all attempts together", minimum=0.001)
    stall_timeout_s: float = knob(10.0, "a storage read without progress for so long is given up and recomputed", minimum=0.001)
    transfer_timeout_s: float = knob(30.0, "longest wait for a peer engine without a sign of life", minimum=0.001)
    heartbeat_timeout_s: float = knob(5.0, "an engine silent for so long is fenced and restarted", minimum=0.1)
    max_attempts: int = knob(
        4, "attempts of a turn in a row that may give no new token (engine deaths, preemptions, timeouts)", minimum=1
    )
    shutdown_timeout_s: float = knob(30.0, "how long a shutdown waits for running turns", minimum=0)


@dataclass(frozen=True, slots=True)
class ModelSettings:
    """What is computed, and with what precision."""

    dtype: Dtype = knob(Dtype.AUTO, "arithmetic and KV precision; auto: as the model directory says")
    device: str = knob("auto", "torch device of the engines: auto, cpu, cuda, cuda:1, …")
    max_len: int | None = knob(None, "most tokens of prompt and output together; default: what the model allows", minimum=2)
    served_model_name: str | None = knob(None, "name that API requests use; default: the directory's name")


@dataclass(frozen=True, slots=True)
class ClusterSettings:
    """Engines and nodes."""

    prefill: int = knob(1, "prefill engines", minimum=1)
    decode: int = knob(1, "decode engines", minimum=1)
    engines_per_node: int = knob(1, "engines of one role that share a node, its storage NIC and a leader", minimum=1)
    system: str = knob("dualpath", "preset: basic, dualpath, dualpath-split or oracle")
    oracle: bool = knob(False, "move no KV bytes at all (an upper bound; tokens mean nothing)")
    recompute_when_faster: bool = knob(False, "recompute a hit when reading it is predicted to take longer")
    profile: str | None = knob(None, "JSON file written by `dualpath profile`")
    decision_log: str | None = knob(None, "file to which the scheduler logs its decisions")


@dataclass(frozen=True, slots=True)
class ServerSettings:
    """The HTTP API."""

    host: str = knob("127.0.0.1", "address to listen on")
    port: int = knob(8000, "port to listen on (0: any free one)", minimum=0, maximum=65535)
    api_key: str | None = knob(None, "key that clients must send as a bearer token")
    max_pending: int = knob(1024, "accepted and unfinished requests above which new ones get 503", minimum=1)


@dataclass(frozen=True, slots=True)
class Settings:
    """All sections; the TOML file has a table for each."""

    cache: CacheSettings = field(default_factory=CacheSettings)
    storage: StoreSettings = field(default_factory=StoreSettings)
    scheduling: SchedulingSettings = field(default_factory=SchedulingSettings)
    prefill: PrefillSettings = field(default_factory=PrefillSettings)
    decode: DecodeSettings = field(default_factory=DecodeSettings)
    deadlines: DeadlineSettings = field(default_factory=DeadlineSettings)
    model: ModelSettings = field(default_factory=ModelSettings)
    cluster: ClusterSettings = field(default_factory=ClusterSettings)
    server: ServerSettings = field(default_factory=ServerSettings)


def section_fields() -> dict[str, tuple[str, Field[Any]]]:
    """Every knob by its name: the section it lives in, and its field."""
    found: dict[str, tuple[str, Field[Any]]] = {}
    for section in fields(Settings):
        assert section.default_factory is not MISSING
        for knob_field in fields(section.default_factory()):
            found[knob_field.name] = (section.name, knob_field)
    return found

"""Everything that processes of a cluster say to each other, as tagged structs in MessagePack.

Every message about a turn carries its request id; assignments carry the trace context of the submission. Durations,
never points in time, cross process borders, since clocks differ between hosts.
"""

from __future__ import annotations

from typing import cast

import msgspec

from dualpath.control.turns import ClusterStatus, EngineStatus, SamplingParams, TokenEvent
from dualpath.errors import ProtocolError
from dualpath.kvcache.chain import KEY_BYTES
from dualpath.types import BlockKey


class Message(msgspec.Struct, array_like=True, tag=True):
    """Base of all messages."""


# --- client <-> scheduler ---------------------------------------------------------------------------------------------


class ClientPing(Message):
    """Keeps a client known; answered by Welcome."""


class Submit(Message):
    """One attempt of a turn.

    ``prompt`` is uint32 little-endian tokens (a view: decoding copies no prompts), ``keys`` the concatenated block keys of
    its whole blocks, ``first_position`` the output tokens that earlier attempts gave (they are part of ``prompt``),
    ``reply_to`` where engines send tokens, ``timeout_s`` what is left of the turn's life.
    """

    request_id: str
    prompt: memoryview
    keys: bytes
    sampling: SamplingParams
    first_position: int
    reply_to: str
    timeout_s: float
    trace_context: str = ""


class CancelTurn(Message):
    request_id: str


class StatusQuery(Message):
    query_id: int


class Welcome(Message):
    """Names the scheduler's incarnation; another ``epoch`` than before means that it has forgotten everything."""

    epoch: str
    ready: bool


class Rejected(Message):
    """The cluster could never serve the request."""

    request_id: str
    reason: str


class TurnDone(Message):
    """The turn is complete; ``output_tokens`` counts all attempts."""

    request_id: str
    finish_reason: str
    output_tokens: int
    stages: Stages
    cached_tokens: int
    read_prefill_tokens: int
    read_decode_tokens: int


class TurnLost(Message):
    """The attempt ended without finishing; another one may continue it if ``retryable``."""

    request_id: str
    reason: str
    retryable: bool


class StatusReply(Message):
    query_id: int
    status: ClusterStatus


class Stages(msgspec.Struct, frozen=True, array_like=True):
    """Seconds spent before the first token (Fig. 12's parts)."""

    scheduling_s: float = 0.0
    allocation_s: float = 0.0
    read_s: float = 0.0
    prefill_s: float = 0.0


# --- engine <-> scheduler ---------------------------------------------------------------------------------------------


class Join(Message):
    """An engine offers itself; sent again to every new scheduler. ``region`` describes a decode engine's DRAM buffer."""

    name: str
    role: str
    group: str
    node: str
    kv_blocks: int
    buffer_blocks: int
    address: str
    region: RegionInfo | None = None


class RegionInfo(msgspec.Struct, frozen=True, array_like=True):
    """A transport's region descriptor on the wire."""

    transport: str
    region: str
    bytes: int
    locator: str


class Fetch(Message):
    """Load report, heartbeat and request for work in one. ``seen`` is the last placement received."""

    name: str
    seen: int
    unread_tokens: int
    free_kv_blocks: int | None
    status: EngineStatus


class ReadDone(Message):
    """``tokens`` of the request's share on ``side`` are read or given up; pins can go when both sides are done."""

    request_id: str
    side: str
    tokens: int


class PrefillDone(Message):
    request_id: str


class TurnEnded(Message):
    """The decode engine has sent the last token. It says everything of the turn: PrefillDone may come later, or never."""

    request_id: str
    finish_reason: str
    output_tokens: int
    cached_tokens: int
    stages: Stages


class TurnFailed(Message):
    """An engine gives the attempt up."""

    request_id: str
    reason: str
    retryable: bool = True


class WriteRequest(Message):
    """Blocks that a decode engine wants to store: a piece of one chain, ``depth`` being the first one's."""

    ticket: int
    parent: bytes | None
    depth: int
    keys: bytes


class WriteResult(Message):
    """What became of the blocks of a granted request, in its order."""

    published: bytes
    failed: bytes


class BlocksLost(Message):
    """Blocks that the index holds and the store does not, or not readably."""

    keys: bytes


class Assign(Message):
    """A placed turn, to both its engines."""

    sequence: int
    submit: Submit
    prefill: str
    decode: str
    prefill_address: str
    decode_address: str
    decode_region: RegionInfo
    read_prefill_tokens: int
    read_decode_tokens: int
    scheduling_s: float


class Withdraw(Message):
    """The turn has left the scheduler; the engine lets go of it."""

    request_id: str
    reason: str


class WriteGrant(Message):
    """The answer to a WriteRequest: ``wanted[i]`` says whether block i is to be written (else it is there, or unwelcome)."""

    ticket: int
    wanted: tuple[bool, ...]


class PeerFenced(Message):
    """This engine can touch no memory any more: it has ended."""

    name: str


class Rejoin(Message):
    """The scheduler does not know the sender (any more): forget all turns and join."""

    epoch: str


# --- engine <-> engine ------------------------------------------------------------------------------------------------


class Granted(Message):
    """The decode engine has reserved buffer slots for the whole prompt: the prefill engine may read and write them."""

    request_id: str
    slots: tuple[int, ...]


class DecodeShareRead(Message):
    """The decode engine's share of the hit is in its buffer, as far as it was usable (whole blocks).

    ``slots`` are the whole prompt's now (none: those of the grant): not all of them are the same any more if a read was
    given up whose bytes may still land.
    """

    request_id: str
    valid_tokens: int
    slots: tuple[int, ...] = ()


class Handover(Message):
    """The decode engine's buffer holds the whole prompt; its slots are its own again."""

    request_id: str
    first: TokenEvent
    finish_reason: str | None
    cached_tokens: int
    stages: Stages


class Abandon(Message):
    """The decode engine takes the grant back; answered by Released once nothing touches the slots."""

    request_id: str
    reply_to: str


class Released(Message):
    request_id: str


# --- launcher <-> scheduler -------------------------------------------------------------------------------------------


class LauncherHello(Message):
    """The launcher is there, and has restarted engines so many times."""

    restarts: int


class EngineExited(Message):
    """The process of this engine has ended."""

    name: str


class Fence(Message):
    """End this engine's process: it has been silent for too long."""

    name: str


# --- engine -> client -------------------------------------------------------------------------------------------------


class Tokens(Message):
    """Tokens of an attempt, each with its position in the turn's output."""

    request_id: str
    events: tuple[TokenEvent, ...]


ToScheduler = (
    ClientPing | Submit | CancelTurn | StatusQuery | Join | Fetch | ReadDone | PrefillDone | TurnEnded | TurnFailed
    | WriteRequest | WriteResult | BlocksLost | LauncherHello | EngineExited
)  # fmt: skip
ToClient = Welcome | Rejected | TurnDone | TurnLost | StatusReply | Tokens
ToEngine = Assign | Withdraw | WriteGrant | PeerFenced | Rejoin | Granted | DecodeShareRead | Handover | Abandon | Released
ToLauncher = Welcome | Fence

_ENCODER = msgspec.msgpack.Encoder()


def encode(message: Message) -> bytes:
    """The message on the wire."""
    return _ENCODER.encode(message)


class Decoder:
    """Decodes one direction's messages."""

    def __init__(self, union: object) -> None:
        self._decoder = msgspec.msgpack.Decoder(union)

    def decode(self, frame: bytes) -> Message:
        """The message in a frame.

        Raises:
            ProtocolError: it is none of this direction's messages.
        """
        try:
            message: Message = self._decoder.decode(frame)
        except msgspec.MsgspecError as error:
            raise ProtocolError(f"undecodable message of {len(frame)} bytes: {error}") from error
        return message


def split_keys(joined: bytes) -> list[BlockKey]:
    """The keys in a concatenation."""
    return cast("list[BlockKey]", [joined[start : start + KEY_BYTES] for start in range(0, len(joined), KEY_BYTES)])

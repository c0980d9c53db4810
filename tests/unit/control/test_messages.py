"""Messages survive the wire, and what is none is refused."""

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dualpath.control import messages
from dualpath.control.messages import (
    Assign,
    Decoder,
    Message,
    RegionInfo,
    Stages,
    StatusReply,
    Submit,
    ToClient,
    ToEngine,
    Tokens,
    ToLauncher,
    ToScheduler,
    WriteGrant,
    encode,
    split_keys,
)
from dualpath.control.turns import ClusterStatus, EngineStatus, SamplingParams, TokenEvent
from dualpath.errors import ProtocolError

SUBMIT = Submit(
    "a",
    memoryview(b"\x01\0\0\0"),
    bytes(16),
    SamplingParams(temperature=0.5, stop_token_ids=(1, 2)),
    3,
    "ipc:///x",
    1.5,
    "trace",
)
EVENT = TokenEvent(0, 7, -0.5, ((7, -0.5), (8, -1.0)), 64)
EXAMPLES: tuple[tuple[object, tuple[Message, ...]], ...] = (
    (
        ToScheduler,
        (
            messages.ClientPing(),
            SUBMIT,
            messages.CancelTurn("a"),
            messages.StatusQuery(3),
            messages.Join("e", "decode", "g", "n", 1, 2, "ipc:///e", RegionInfo("shm", "r", 3, "fd")),
            messages.Join("e", "prefill", "g", "n", 1, 2, "ipc:///e"),
            messages.Fetch("e", 1, 2, None, EngineStatus(name="e", role="decode", node="n", transfer_bytes={"x": 1})),
            messages.ReadDone("a", "decode", 64),
            messages.PrefillDone("a"),
            messages.TurnEnded("a", "stop", 3, 64, Stages(1.0, 2.0, 3.0, 4.0)),
            messages.TurnFailed("a", "why", False),
            messages.WriteRequest(1, None, 0, bytes(32)),
            messages.WriteRequest(1, bytes(16), 3, bytes(32)),
            messages.WriteResult(bytes(16), b""),
            messages.BlocksLost(bytes(16)),
            messages.LauncherHello(2),
            messages.EngineExited("e"),
        ),
    ),
    (
        ToClient,
        (
            messages.Welcome("epoch", True),
            messages.Rejected("a", "why"),
            messages.TurnDone("a", "stop", 3, Stages(1.0), 64, 0, 64),
            messages.TurnLost("a", "why", True),
            StatusReply(3, ClusterStatus(engines=(EngineStatus(name="e", role="decode", node="n"),), waiting=1)),
            Tokens("a", (EVENT, TokenEvent(1, 8))),
        ),
    ),
    (
        ToEngine,
        (
            Assign(1, SUBMIT, "p", "d", "ipc:///p", "ipc:///d", RegionInfo("shm", "r", 3, "fd"), 64, 0, 0.5),
            messages.Withdraw("a", "cancelled"),
            WriteGrant(1, (True, False)),
            messages.PeerFenced("e"),
            messages.Rejoin("epoch"),
            messages.Granted("a", (1, 2)),
            messages.DecodeShareRead("a", 64),
            messages.Handover("a", EVENT, None, 64, Stages()),
            messages.Abandon("a", "ipc:///d"),
            messages.Released("a"),
        ),
    ),
    (ToLauncher, (messages.Welcome("epoch", False), messages.Fence("e"))),
)
DIRECTIONS = [pytest.param(union, example, id=type(example).__name__) for union, examples in EXAMPLES for example in examples]


@pytest.mark.parametrize(("union", "message"), DIRECTIONS)
def test_every_message_survives_the_wire(union: object, message: Message) -> None:
    assert Decoder(union).decode(encode(message)) == message


def test_the_examples_are_all_messages_of_their_directions() -> None:
    for union, examples in EXAMPLES:
        assert {type(example) for example in examples} == set(getattr(union, "__args__", ())), union


@pytest.mark.parametrize(("union", "message"), DIRECTIONS)
def test_a_message_of_another_direction_is_refused(union: object, message: Message) -> None:
    other = next(other for other, examples in EXAMPLES if type(message) not in {type(one) for one in examples})
    with pytest.raises(ProtocolError, match=f"message of {len(encode(message))} bytes"):
        Decoder(other).decode(encode(message))


def test_wrong_types_are_refused() -> None:
    for frame in (["PrefillDone", 3], ["PrefillDone"], ["CancelTurn", None], ["WriteGrant", 1, [1]], {"PrefillDone": "a"}, 3):
        with pytest.raises(ProtocolError):
            Decoder(ToScheduler | ToEngine).decode(msgspec.msgpack.encode(frame))


@given(st.binary(max_size=200))
@settings(deadline=None, max_examples=200)
def test_garbage_is_refused_or_is_a_message(frame: bytes) -> None:
    try:
        assert isinstance(Decoder(ToScheduler).decode(frame), Message)
    except ProtocolError as error:
        assert f"{len(frame)} bytes" in str(error)  # noqa: PT017 - either is right


@given(cut=st.integers(0, 10_000), flip=st.integers(0, 7))
@settings(deadline=None, max_examples=200)
def test_damaged_frames_never_do_worse_than_a_protocol_error(cut: int, flip: int) -> None:
    frame = bytearray(encode(SUBMIT))
    cut %= len(frame)
    for damaged in (bytes(frame[:cut]), bytes(frame[:cut]) + bytes([frame[cut] ^ (1 << flip)]) + bytes(frame[cut + 1 :])):
        try:
            Decoder(ToScheduler).decode(damaged)
        except ProtocolError:
            continue


def test_keys_are_split_at_their_length() -> None:
    keys = [bytes([number]) * 16 for number in range(3)]
    assert split_keys(b"".join(keys)) == keys
    assert split_keys(b"") == []

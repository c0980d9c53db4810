"""The scheduler service: what each message leads to, and that nothing is left of turns that have ended."""

from collections.abc import Iterator

import pytest
from tests.support.service_rig import BLOCK, EPOCH, ServiceRig, chain, only

from dualpath.control.messages import (
    Assign,
    BlocksLost,
    CancelTurn,
    ClientPing,
    EngineExited,
    Fence,
    LauncherHello,
    PeerFenced,
    PrefillDone,
    ReadDone,
    Rejected,
    Rejoin,
    Stages,
    TurnDone,
    TurnEnded,
    TurnFailed,
    TurnLost,
    Welcome,
    Withdraw,
    WriteResult,
)
from dualpath.types import Side

P, D = "prefill-0", "decode-0"
PROMPT = range(1, 3 * BLOCK + 2)
"""Three whole blocks and a token, so that all three may be a hit."""


@pytest.fixture
def rig() -> Iterator[ServiceRig]:
    one = ServiceRig()
    one.join(P, D)
    one.say("client-0", ClientPing())
    yield one
    one.storage.close()


# --- placement --------------------------------------------------------------------------------------------------------


def test_a_turn_goes_to_both_engines_at_once_and_its_end_to_the_client(rig: ServiceRig) -> None:
    rig.clock.advance(1.0)
    sent = rig.submit("a", PROMPT)
    assert [receiver for receiver, _ in only(Assign, sent)] == [D, P]
    assign = only(Assign, sent)[0][1]
    assert (assign.prefill, assign.decode, assign.sequence) == (P, D, 1)
    assert (assign.prefill_address, assign.decode_address) == (f"at {P}", f"at {D}")
    assert (assign.read_prefill_tokens, assign.read_decode_tokens) == (0, 0)
    assert assign.submit.request_id == "a"
    assert (rig.status().running, rig.status().waiting) == (1, 0)
    assert rig.say(P, PrefillDone("a")) == []
    sent = rig.say(D, TurnEnded("a", "stop", 3, 0, Stages(7.0, 0.1, 0.2, 0.3)))
    assert sent == [("client-0", TurnDone("a", "stop", 3, Stages(0.0, 0.1, 0.2, 0.3), 0, 0, 0))]
    rig.assert_idle()


def test_turns_wait_for_both_roles_and_their_waiting_is_reported() -> None:
    rig = ServiceRig()
    assert rig.submit("a", PROMPT) == []
    assert (rig.status().running, rig.status().waiting) == (0, 1)
    rig.clock.advance(0.5)
    assert rig.join(D) == []
    assign = only(Assign, rig.join(P))[0][1]
    assert assign.scheduling_s == 0.5
    assert only(TurnDone, rig.finish(assign))[0][1].stages == Stages(0.5, 0.1, 0.2, 0.3)
    rig.assert_idle()


def test_what_no_engine_could_ever_hold_is_refused_with_a_reason(rig: ServiceRig) -> None:
    sent = rig.submit("a", range(60 * BLOCK))
    ((receiver, rejected),) = only(Rejected, sent)
    assert (receiver, rejected.request_id) == ("client-0", "a")
    assert "decode engine" in rejected.reason
    assert len(sent) == 1
    rig.assert_idle()


def test_a_turn_waits_for_room_and_gets_it_when_another_ends(rig: ServiceRig) -> None:
    first = rig.place("a", range(40 * BLOCK))
    assert rig.submit("b", range(30 * BLOCK)) == []
    assert rig.submit("c", range(20 * BLOCK)) == []
    assert (rig.status().running, rig.status().waiting) == (1, 2)
    placed = [message.submit.request_id for _, message in only(Assign, rig.finish(first))]
    assert placed == ["b", "b"]
    rig.say("client-0", CancelTurn("b"))
    assert rig.status().running == 1  # c
    rig.say("client-0", CancelTurn("c"))
    rig.assert_idle()


def test_a_leader_s_report_makes_room_too() -> None:
    rig = ServiceRig(decode_free_watermark=0)
    rig.join(P, D)
    rig.fetch(D, free=10)  # 40 blocks are in use beyond the ledger
    assert rig.submit("a", range(20 * BLOCK)) == []
    assert only(Assign, rig.fetch(P)) == []
    assert len(only(Assign, rig.fetch(D, free=50))) == 2


def test_a_submission_that_comes_twice_counts_once(rig: ServiceRig) -> None:
    assign = rig.place("a", PROMPT)
    assert rig.submit("a", PROMPT) == []
    rig.finish(assign)
    rig.assert_idle()


# --- hits -------------------------------------------------------------------------------------------------------------


def test_a_hit_is_pinned_until_it_is_read(rig: ServiceRig) -> None:
    rig.store(D, PROMPT)
    assign = rig.place("a", PROMPT)
    assert assign.read_prefill_tokens + assign.read_decode_tokens == 3 * BLOCK
    assert rig.status().pinned_blocks == 1
    side = Side.PREFILL if assign.read_prefill_tokens else Side.DECODE
    rig.say(P, ReadDone("a", side, 3 * BLOCK))
    assert rig.status().pinned_blocks == 0
    rig.say(P, ReadDone("a", side, 3 * BLOCK))  # once more: no pin is taken back twice
    done = only(TurnDone, rig.say(D, TurnEnded("a", "length", 4, 2 * BLOCK, Stages())))[0][1]
    # The engines used two of the three blocks.
    assert done.cached_tokens == done.read_prefill_tokens + done.read_decode_tokens == 2 * BLOCK
    assert (rig.status().lookup_tokens, rig.status().hit_tokens) == (len(PROMPT), 3 * BLOCK)
    rig.assert_idle()


def test_a_split_hit_is_pinned_until_both_sides_have_read() -> None:
    rig = ServiceRig(read_side="split")
    rig.join(P, D)
    rig.store(D, range(8 * BLOCK))
    assign = rig.place("a", [*range(8 * BLOCK), 1])
    assert assign.read_prefill_tokens
    assert assign.read_decode_tokens
    rig.say(P, ReadDone("a", Side.PREFILL, assign.read_prefill_tokens))
    assert rig.status().pinned_blocks == 1
    rig.say(D, ReadDone("a", Side.DECODE, assign.read_decode_tokens))
    assert rig.status().pinned_blocks == 0


def test_a_read_reported_before_the_placement_unpins_nothing(rig: ServiceRig) -> None:
    rig.store(D, PROMPT)
    blocker = rig.place("blocker", range(40 * BLOCK))
    rig.submit("a", [*PROMPT, *range(100, 100 + 20 * BLOCK)])
    rig.say(P, ReadDone("a", Side.PREFILL, 3 * BLOCK))
    assert rig.status().pinned_blocks == 1
    rig.finish(blocker)
    rig.say("client-0", CancelTurn("a"))
    rig.assert_idle()


def test_at_least_one_token_is_computed(rig: ServiceRig) -> None:
    whole = range(1, 3 * BLOCK + 1)
    rig.store(D, whole)
    assign = rig.place("a", whole)
    assert assign.read_prefill_tokens + assign.read_decode_tokens == 2 * BLOCK


def test_lost_blocks_are_no_hits_any_more_and_are_deleted(rig: ServiceRig) -> None:
    rig.store(D, PROMPT)
    rig.say(P, BlocksLost(chain(PROMPT)[1]))
    assert rig.status().stored_blocks == 1
    assert [block.key for block in rig.storage.scan()] == chain(PROMPT)[:1]
    assign = rig.place("a", PROMPT)
    assert assign.read_prefill_tokens + assign.read_decode_tokens == BLOCK


# --- waiting for blocks that are being written ------------------------------------------------------------------------


def parked(rig: ServiceRig) -> None:
    """A turn that waits for blocks which the decode engine is writing."""
    assert rig.request_write(D, PROMPT) == (True, True, True)
    assert rig.submit("a", PROMPT) == []
    assert (rig.status().waiting, rig.status().pending_blocks) == (1, 3)


def hit_tokens(sent: list[tuple[str, object]]) -> int:
    """The hit of the one turn that is placed."""
    assigns = [message for _, message in sent if isinstance(message, Assign)]
    assert len(assigns) == 2
    return assigns[0].read_prefill_tokens + assigns[0].read_decode_tokens


def test_publication_lets_it_go_on_with_the_hit(rig: ServiceRig) -> None:
    parked(rig)
    keys = chain(PROMPT)
    assert only(Assign, rig.say(D, WriteResult(keys[0], b""))) == []  # the next block is still being written
    assert hit_tokens([*rig.say(D, WriteResult(b"".join(keys[1:]), b""))]) == 3 * BLOCK


def test_a_failed_write_lets_it_go_on_without(rig: ServiceRig) -> None:
    parked(rig)
    keys = chain(PROMPT)
    rig.say(D, WriteResult(keys[0], b""))
    assert hit_tokens([*rig.say(D, WriteResult(b"", keys[1]))]) == BLOCK
    rig.say(D, WriteResult(keys[2], b""))  # written all the same, but nobody will find it
    assert (rig.status().pending_blocks, rig.status().stored_blocks) == (0, 1)


def test_after_a_while_it_goes_on_without(rig: ServiceRig) -> None:
    parked(rig)
    assert only(Assign, rig.pass_time(1.9, P, D, "client-0")) == []
    assert hit_tokens([*rig.pass_time(0.3, P, D, "client-0")]) == 0


def test_the_writer_s_death_lets_it_go_on_without(rig: ServiceRig) -> None:
    rig.join("decode-1")
    assert rig.request_write(D, PROMPT) == (True, True, True)
    rig.submit("a", PROMPT)
    assert hit_tokens([*rig.say("launcher", EngineExited(D))]) == 0
    assert rig.status().pending_blocks == 0


def test_cancelling_it_leaves_nothing(rig: ServiceRig) -> None:
    parked(rig)
    assert rig.say("client-0", CancelTurn("a")) == []
    rig.say(D, WriteResult(b"".join(chain(PROMPT)), b""))
    rig.assert_idle()


def test_one_that_was_cancelled_and_submitted_again_waits_once(rig: ServiceRig) -> None:
    parked(rig)
    rig.say("client-0", CancelTurn("a"))
    assert rig.submit("a", PROMPT) == []
    sent = rig.say(D, WriteResult(b"".join(chain(PROMPT)), b""))
    assert len(only(Assign, sent)) == 2
    rig.finish(only(Assign, sent)[0][1])
    rig.assert_idle()


def test_its_deadline_ends_it() -> None:
    rig = ServiceRig(pending_timeout_s=50)
    rig.join(P, D)
    rig.request_write(D, PROMPT)
    rig.submit("a", PROMPT, timeout_s=1.0)
    ((_, lost),) = only(TurnLost, rig.pass_time(1.2, P, D, "client-0"))
    assert (lost.request_id, lost.retryable) == ("a", False)
    rig.say(D, WriteResult(b"", b"".join(chain(PROMPT))))
    rig.assert_idle()


# --- ends -------------------------------------------------------------------------------------------------------------


def test_cancelling_a_placed_turn_withdraws_it_from_both_engines_and_says_nothing_to_the_client(rig: ServiceRig) -> None:
    rig.store(D, PROMPT)
    rig.place("a", PROMPT)
    sent = rig.say("client-0", CancelTurn("a"))
    assert sorted(receiver for receiver, _ in only(Withdraw, sent)) == [D, P]
    assert len(sent) == 2
    assert rig.say("client-0", CancelTurn("a")) == []
    rig.assert_idle()


def test_cancelling_after_the_prefill_withdraws_it_from_the_decode_engine(rig: ServiceRig) -> None:
    rig.place("a", PROMPT)
    rig.say(P, PrefillDone("a"))
    assert [receiver for receiver, _ in only(Withdraw, rig.say("client-0", CancelTurn("a")))] == [D]
    rig.assert_idle()


def test_cancelling_a_waiting_turn_leaves_nothing() -> None:
    rig = ServiceRig()
    rig.join(D)
    rig.submit("a", PROMPT)  # half placed
    assert rig.say("client-0", CancelTurn("a")) == []
    rig.assert_idle()


def test_a_deadline_ends_a_turn_wherever_it_is_for_good(rig: ServiceRig) -> None:
    rig.submit("a", PROMPT, timeout_s=1.0)
    sent = rig.pass_time(1.2, P, D, "client-0")
    assert sorted(receiver for receiver, _ in only(Withdraw, sent)) == [D, P]
    assert [(lost.request_id, lost.retryable) for _, lost in only(TurnLost, sent)] == [("a", False)]
    rig.assert_idle()


@pytest.mark.parametrize("retryable", [True, False])
def test_an_engine_that_gives_up_says_why_and_whether_another_attempt_makes_sense(rig: ServiceRig, retryable: bool) -> None:
    rig.place("a", PROMPT)
    sent = rig.say(D, TurnFailed("a", "no page for the next token", retryable))
    assert ("client-0", TurnLost("a", "no page for the next token", retryable)) in sent
    assert P in [receiver for receiver, _ in only(Withdraw, sent)]
    rig.assert_idle()


def test_late_events_are_ignored(rig: ServiceRig) -> None:
    assign = rig.place("a", PROMPT)
    rig.finish(assign)
    for message in (
        ReadDone("a", Side.PREFILL, 4),
        PrefillDone("a"),
        TurnEnded("a", "stop", 1, 0, Stages()),
        TurnFailed("a", "late"),
        CancelTurn("a"),
    ):
        assert rig.say(D, message) == []
    rig.assert_idle()


def test_an_end_reported_before_the_placement_ends_nothing() -> None:
    rig = ServiceRig()
    rig.submit("a", PROMPT)
    assert rig.say(D, TurnEnded("a", "stop", 1, 0, Stages())) == []
    assert rig.say(D, PrefillDone("a")) == []
    assert rig.status().waiting == 1


# --- engines ----------------------------------------------------------------------------------------------------------


def test_a_silent_engine_is_fenced_and_its_turns_are_lost_but_its_memory_is_safe_only_at_its_end(rig: ServiceRig) -> None:
    rig.say("launcher", LauncherHello(0))
    rig.store(D, PROMPT)
    rig.place("a", PROMPT)
    sent = rig.pass_time(5.5, P, "client-0")
    assert only(Fence, sent) == [("launcher", Fence(D))]
    assert [(lost.reason, lost.retryable) for _, lost in only(TurnLost, sent)] == [("engine-lost", True)]
    assert [receiver for receiver, _ in only(Withdraw, sent)] == [P]
    assert only(PeerFenced, sent) == []
    assert rig.say("launcher", EngineExited(D)) == [(P, PeerFenced(D))]
    assert rig.status().engines[0].name == P
    rig.assert_idle()


def test_an_engine_that_ends_by_itself_is_given_up_at_once(rig: ServiceRig) -> None:
    rig.place("a", PROMPT)
    sent = rig.say("launcher", EngineExited(P))
    assert [lost.request_id for _, lost in only(TurnLost, sent)] == ["a"]
    assert only(PeerFenced, sent) == [(D, PeerFenced(P))]
    assert only(Fence, sent) == []
    rig.assert_idle()


def test_a_lost_engine_never_comes_back_under_its_name(rig: ServiceRig) -> None:
    rig.say("launcher", EngineExited(D))
    rig.join(D)
    assert rig.fetch(D) == []  # not even asked to rejoin: it is being killed
    assert [engine.name for engine in rig.status().engines] == [P]
    rig.join("decode-0.1")
    assert len(only(Assign, rig.submit("a", PROMPT))) == 2


def test_unknown_engines_are_asked_to_join(rig: ServiceRig) -> None:
    assert rig.fetch("decode-9") == [("decode-9", Rejoin(EPOCH))]
    assert rig.say("decode-9", WriteResult(b"", b"")) == []
    rig.join("decode-9")
    assert rig.fetch("decode-9") == []


def test_an_engine_that_joins_twice_is_one(rig: ServiceRig) -> None:
    rig.place("a", PROMPT)
    assert rig.join(D) == []
    assert rig.status().running == 1
    assert len(rig.status().engines) == 2


# --- clients ----------------------------------------------------------------------------------------------------------


def test_clients_are_welcomed_with_the_epoch_and_whether_the_cluster_is_complete() -> None:
    rig = ServiceRig()
    assert rig.say("client-0", ClientPing()) == [("client-0", Welcome(EPOCH, False))]
    rig.join(P)
    assert rig.say("client-0", ClientPing()) == [("client-0", Welcome(EPOCH, False))]
    rig.join(D)
    assert rig.say("client-0", ClientPing()) == [("client-0", Welcome(EPOCH, True))]
    assert rig.say("launcher", LauncherHello(3)) == [("launcher", Welcome(EPOCH, True))]
    assert rig.status().restarts == 3


def test_the_turns_of_a_silent_client_end_and_no_others(rig: ServiceRig) -> None:
    rig.say("client-1", ClientPing())
    rig.place("a", PROMPT, "client-0")
    rig.place("b", PROMPT, "client-1")
    sent = rig.pass_time(10.5, P, D, "client-1")
    assert {message.request_id for _, message in only(Withdraw, sent)} == {"a"}
    assert rig.status().running == 1


# --- the store --------------------------------------------------------------------------------------------------------


def test_writes_are_granted_once_and_only_within_the_capacity() -> None:
    rig = ServiceRig(capacity_blocks=4)
    rig.join(P, D, "decode-1")
    assert rig.request_write(D, range(3 * BLOCK)) == (True, True, True)
    assert rig.request_write("decode-1", range(3 * BLOCK)) == (False, False, False)
    # One block more fits; those being written cannot be evicted.
    assert rig.request_write(D, range(100, 100 + 2 * BLOCK)) == (True, False)


def test_a_full_store_evicts_what_was_used_longest_ago_and_deletes_it() -> None:
    rig = ServiceRig(capacity_blocks=4)
    rig.join(P, D)
    old, new = range(2 * BLOCK), range(100, 100 + 2 * BLOCK)
    rig.store(D, old)
    rig.store(D, new)
    rig.finish(rig.place("a", [*old, 1]))  # uses it
    rig.store(D, range(200, 200 + BLOCK))
    stored = {block.key for block in rig.storage.scan()}
    assert stored == {*chain(old), chain(new)[0], *chain(range(200, 200 + BLOCK))}
    assert (rig.status().stored_blocks, rig.status().evicted_blocks) == (4, 1)


def test_a_pinned_hit_is_not_evicted() -> None:
    rig = ServiceRig(capacity_blocks=3)
    rig.join(P, D)
    rig.store(D, PROMPT)
    assign = rig.place("a", PROMPT)
    assert rig.request_write(D, range(100, 100 + BLOCK)) == (False,)
    rig.finish(assign)
    assert rig.request_write(D, range(100, 100 + BLOCK)) == (True,)


def test_engines_that_are_unknown_get_no_grants(rig: ServiceRig) -> None:
    with pytest.raises(ValueError, match="not enough values"):
        rig.request_write("decode-9", PROMPT)


def test_status_counts_blocks_and_bytes(rig: ServiceRig) -> None:
    rig.store(D, PROMPT)
    rig.fetch(D, free=40)
    status = rig.status()
    assert (status.stored_blocks, status.stored_bytes) == (3, 3 * 2 * 4 * 8)
    assert {engine.name: engine.running for engine in status.engines} == {P: 0, D: 7}

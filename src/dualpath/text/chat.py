"""Chat templates as Hugging Face directories keep them: messages in, the model's own text format out."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from jinja2 import Template, nodes
from jinja2.exceptions import TemplateError
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from dualpath.errors import InvalidRequest, ModelError


def load_templates(directory: Path, config: Mapping[str, Any]) -> dict[str, str]:
    """A directory's templates by name: ``chat_template.jinja``, ``chat_templates/*.jinja``, else those of the config.

    Raises:
        ModelError: the config's ``chat_template`` is neither text nor a list of named templates.
    """
    files = {file.stem: file for file in sorted((directory / "chat_templates").glob("*.jinja"))}
    if (main := directory / "chat_template.jinja").is_file():
        files["default"] = main
    if files:
        return {name: file.read_text(encoding="utf-8") for name, file in files.items()}
    configured = config.get("chat_template")
    if configured is None:
        return {}
    if isinstance(configured, str):
        return {"default": configured}
    try:
        return {str(entry["name"]): str(entry["template"]) for entry in configured}
    except (TypeError, KeyError) as error:
        raise ModelError(f"{directory}: chat_template is neither text nor a list of named templates") from error


class ChatTemplate:
    """A model's chat template, compiled in a sandbox because models come from elsewhere. Thread-safe.

    ``sources`` are templates by name: ``tool_use``, where there is one, serves requests with tools, ``default`` all
    others. ``special_tokens`` (``bos_token`` …) are variables of the template.

    Raises:
        ModelError: a template is malformed, or several have no default.
    """

    def __init__(self, sources: Mapping[str, str], special_tokens: Mapping[str, str]) -> None:
        if "default" not in sources:
            raise ModelError(f"no chat template is the default one; there are {', '.join(sorted(sources)) or 'none'}")
        self._special_tokens = dict(special_tokens)
        try:
            self._templates = {name: _compile(source) for name, source in sources.items()}
        except TemplateError as error:
            raise ModelError(f"the chat template is malformed: {error}") from error

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        template_arguments: Mapping[str, Any] | None = None,
    ) -> str:
        """The conversation as text, with ``add_generation_prompt`` up to where the assistant's next message begins.

        Raises:
            InvalidRequest: a message is malformed (names it), or the template refuses the conversation.
        """
        variables = {**self._special_tokens, **(template_arguments or {})}
        variables |= {"messages": normalized(messages), "tools": tools, "documents": None}
        variables["add_generation_prompt"] = add_generation_prompt
        template = self._templates["tool_use" if tools and "tool_use" in self._templates else "default"]
        try:
            return template.render(variables)
        except Exception as error:  # a template is a program of its own: whatever it raises, these messages caused it
            reason = (str(error).splitlines() or [type(error).__name__])[0]
            raise InvalidRequest(f"the chat template refuses the messages: {reason}") from error


def normalized(messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Messages as templates expect them: text content in one piece, arguments of tool calls as objects, no nulls.

    Raises:
        InvalidRequest: a message has no role, content that is not text, or malformed tool calls; names it.
    """
    if not messages:
        raise InvalidRequest("messages must not be empty")
    return [_normalized_message(message, f"messages[{index}]") for index, message in enumerate(messages)]


def _normalized_message(message: Mapping[str, Any], where: str) -> dict[str, Any]:
    if not isinstance(message, Mapping):
        raise InvalidRequest(f"{where} must be an object")
    role = message.get("role")
    if not isinstance(role, str) or not role:
        raise InvalidRequest(f"{where}.role must be a non-empty string")
    result = {key: value for key, value in message.items() if value is not None}
    if "tool_calls" in result:
        result["tool_calls"] = _tool_calls(result["tool_calls"], f"{where}.tool_calls")
    elif "content" not in result:
        raise InvalidRequest(f"{where}.content is missing")
    # Templates join content to text without asking whether a message that only calls tools has any.
    result["content"] = _text(result.get("content", ""), f"{where}.content")
    return result


def _text(content: Any, where: str) -> str:
    """Content as one string; the parts of a list are joined by line ends."""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise InvalidRequest(f"{where} must be a string or a list of text parts")
    return "\n".join(_part_text(part, f"{where}[{index}]") for index, part in enumerate(content))


def _part_text(part: Any, where: str) -> str:
    if not isinstance(part, dict):
        raise InvalidRequest(f"{where} must be an object")
    if part.get("type") != "text":
        raise InvalidRequest(f"{where}.type must be 'text': this server takes text only")
    if not isinstance(part.get("text"), str):
        raise InvalidRequest(f"{where}.text must be a string")
    return str(part["text"])


def _tool_calls(calls: Any, where: str) -> list[dict[str, Any]]:
    if not isinstance(calls, list):
        raise InvalidRequest(f"{where} must be a list")
    return [_tool_call(call, f"{where}[{index}]") for index, call in enumerate(calls)]


def _tool_call(call: Any, where: str) -> dict[str, Any]:
    """One call; the API carries its arguments as JSON text, templates expect the object."""
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(function, dict):
        raise InvalidRequest(f"{where}.function must be an object")
    arguments = function.get("arguments")
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments or "{}")
        except (ValueError, RecursionError) as error:
            raise InvalidRequest(f"{where}.function.arguments is no JSON: {error}") from error
    return {**call, "function": {**function, "arguments": arguments}}


class _GenerationTag(Extension):
    """``{% generation %}`` marks assistant text for training; in serving it is its body."""

    tags = {"generation"}  # noqa: RUF012 - the base class declares it so

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        return nodes.Scope(parser.parse_statements(("name:endgeneration",), drop_needle=True), lineno=line)


def _compile(source: str) -> Template:
    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationTag, loopcontrols])
    environment.filters["tojson"] = _tojson
    helpers: dict[str, Callable[..., Any]] = {"raise_exception": _raise_exception, "strftime_now": _strftime_now}
    environment.globals.update(helpers)
    return environment.from_string(source)


def _raise_exception(message: str) -> None:
    raise TemplateError(message)


def _strftime_now(format: str) -> str:
    return datetime.now().strftime(format)


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """JSON as models saw it in training; jinja's own filter escapes HTML."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)

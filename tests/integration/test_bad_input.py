"""What users get wrong: the command and LocalCluster say what, with an exit status, without a traceback, and leave nothing."""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dualpath.cluster.local import LocalCluster
from dualpath.errors import (
    ClusterError,
    DualPathError,
    InvalidRequest,
    ModelError,
    PromptTooLong,
    SettingsError,
)
from dualpath.models.create import create_model
from dualpath.workload.trace import write_trace
from dualpath.workload.trajectory import Trajectory, Turn

COMMAND = (sys.executable, "-m", "dualpath.cli.main")
SMALL: dict[str, Any] = {"prefill_buffer": "8MB", "decode_buffer": "8MB", "decode_kv_memory": "8MB", "prefill_kv_memory": "4MB"}
USAGE, FAILURE = 2, 1


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("models") / "tiny"
    create_model(directory, layers=2, hidden=32, heads=2, kv_heads=2, intermediate=32, vocab=320)
    return directory


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("traces") / "trace.jsonl"
    path.write_text("\n".join(write_trace([Trajectory("agent", (Turn(40, 3), Turn(20, 200)))])))
    return path


@pytest.fixture
def scratch() -> Iterator[Path]:
    """Where a command's temporary directories go; there are none, and no process that knows them, in the end."""
    directory = Path(tempfile.mkdtemp(prefix="dp"))  # tmp_path is too long for sockets
    yield directory
    deadline = time.monotonic() + 5.0
    while _processes(directory) and time.monotonic() < deadline:
        time.sleep(0.05)
    left = list(directory.iterdir()), _processes(directory)
    shutil.rmtree(directory)
    assert left == ([], [])


def _processes(directory: Path) -> list[str]:
    """Command lines of the processes that were told of a path in ``directory``."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            line = path.read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        if str(directory) in line:
            found.append(line)
    return found


def start(scratch: Path, *arguments: str | Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [*COMMAND, *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, "TMPDIR": str(scratch), "COLUMNS": "400"},
    )


def refused(scratch: Path, exit_status: int, says: str | tuple[str, ...], *arguments: str | Path) -> str:
    """The output of a command that has to fail with this status and these words, in few lines."""
    process = start(scratch, *arguments)
    output, _ = process.communicate(timeout=60)
    assert "Traceback" not in output, output
    assert process.returncode == exit_status, output
    for words in (says,) if isinstance(says, str) else says:
        assert words in output, output
    assert len(output.splitlines()) <= 5, output
    return output


# --- flags and files -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("says", "flags"),
    [
        (("No such option '--snic-bandwith'", "--snic-bandwidth"), ("--snic-bandwith", "3")),
        ("'--prefill': 'two' is not a valid integer", ("--prefill", "two")),
        (("prefill", "-1", "below"), ("--prefill", "-1")),
        (("block_tokens", "0 is below"), ("--block-tokens", "0")),
        (("alpha_s", "nan is not a finite number"), ("--alpha-s", "nan")),
        (("snic_bandwidth", "'fast' is no size", "64MB/s"), ("--snic-bandwidth", "fast")),
        (("decode_buffer", "'-3' is no size"), ("--decode-buffer", "-3")),
        (("port", "70000 is above", "65535"), ("--port", "70000")),
        (("'nope' is none of basic,", "dualpath-split", "oracle"), ("--system", "nope")),
        (("'--read-side'", "'shorter-queue'"), ("--read-side", "nope")),
        ("cannot listen on no.such.host.invalid:8000", ("--host", "no.such.host.invalid")),
    ],
)
def test_flags(scratch: Path, says: str | tuple[str, ...], flags: tuple[str, ...]) -> None:
    refused(scratch, USAGE, says, "serve", "model", *flags)


@pytest.mark.parametrize(
    ("says", "content"),
    [
        (("no table [cachee]", "did you mean 'cache'?"), "[cachee]\nblock_tokens = 16"),
        (("[cache] has no key 'blok_tokens'", "did you mean 'block_tokens'?"), "[cache]\nblok_tokens = 16"),
        ("block_tokens: '16' is not a whole number", '[cache]\nblock_tokens = "16"'),
        ("max_decode_batch: 0 is below", "[decode]\nmax_decode_batch = 0"),
        ("Expected ']'", "[cache"),
    ],
)
def test_settings_files(scratch: Path, tmp_path: Path, says: str | tuple[str, ...], content: str) -> None:
    path = tmp_path / "settings.toml"
    path.write_text(content)
    output = refused(scratch, USAGE, says, "serve", "model", "--config", path)
    assert str(path) in output


def test_a_settings_file_that_is_not_there(scratch: Path, tmp_path: Path) -> None:
    refused(scratch, USAGE, ("nope.toml", "No such file"), "serve", "model", "--config", tmp_path / "nope.toml")
    refused(scratch, USAGE, (str(tmp_path), "directory"), "serve", "model", "--config", tmp_path)


def test_a_port_in_use(scratch: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        refused(scratch, USAGE, (f"127.0.0.1:{port}", "in use"), "serve", "model", "--port", str(port))


def test_unknown_commands_and_missing_arguments(scratch: Path) -> None:
    refused(scratch, USAGE, "No such command 'sevre'", "sevre")
    refused(scratch, USAGE, "Missing argument 'MODEL'", "serve")
    refused(scratch, USAGE, "Missing option '--model'", "replay", "--trace", "t")


# --- replay -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("says", "flags"),
    [
        (("'--agents': 0", "x>=1"), ("--agents", "0")),
        (("'--arrival-rate': -1.0", "x>0"), ("--arrival-rate", "-1")),
        ("'--arrival-rate': nan is not a finite number", ("--arrival-rate", "nan")),
        ("'--scale': inf is not a finite number", ("--scale", "inf")),
        (("system: nope", "choose from basic,", "oracle"), ("--system", "dualpath,nope")),
        ("system: none given", ("--system", ",")),
    ],
)
def test_replay_flags(scratch: Path, trace: Path, says: str | tuple[str, ...], flags: tuple[str, ...]) -> None:
    refused(scratch, USAGE, says, "replay", "--model", "model", "--trace", trace, *flags)


def test_a_replay_of_which_every_turn_fails_ends_and_says_why(scratch: Path, model: Path, tmp_path: Path) -> None:
    trace = tmp_path / "long.jsonl"
    trace.write_text("\n".join(write_trace([Trajectory("agent", (Turn(100_000, 3),))])))
    sizes = [part for name, size in SMALL.items() for part in (f"--{name.replace('_', '-')}", size)]
    command = [*COMMAND, "replay", "--model", model, "--trace", trace, "--system", "basic", *sizes]
    done = subprocess.run(
        command, env=os.environ | {"TMPDIR": str(scratch)}, capture_output=True, text=True, timeout=60, check=False
    )
    assert "basic: 1 turns failed" in done.stderr, done.stdout + done.stderr
    assert "maximum context length" in done.stderr
    assert "turns failed" in done.stdout


def test_an_unwritable_report_is_noticed_before_the_replay(scratch: Path, tmp_path: Path, trace: Path) -> None:
    (tmp_path / "file").write_text("precious")
    replay = ("replay", "--model", "model", "--trace", trace, "--json")
    path = tmp_path / "file" / "report.json"
    refused(scratch, USAGE, ("--json", str(path), "Not a directory"), *replay, path)
    refused(scratch, USAGE, ("--json", str(tmp_path), "Is a directory"), *replay, tmp_path)
    # A writable one is not touched by a replay that then fails for another reason.
    refused(scratch, FAILURE, "no such model directory", *replay, tmp_path / "file")
    refused(scratch, FAILURE, "no such model directory", *replay, tmp_path / "new.json")
    assert {one.name: one.read_text() for one in tmp_path.iterdir()} == {"file": "precious"}


@pytest.mark.parametrize(
    ("says", "content"),
    [
        (":1: the trace is empty", b""),
        ((":1: no known trace format", "Mooncake JSONL"), b'{"foo": 3}\n'),
        (":1: turns: must be a list with at least one entry", b'{"id": "a", "turns": []}\n'),
        (":1: no JSON", b'{"id": "a", "turns": [{"appended_tokens": 4'),
        (":2: no JSON", b'{"id":"a","turns":[{"appended_tokens":40,"output_tokens":3}]}\n{"id":}\n'),
        (":1: turns[0].output_tokens", b'{"id": "a", "turns": [{"appended_tokens": 4}]}\n'),
        (("2 turns beyond 30 tokens", "no trajectory has a first turn within 30 tokens"), None),
        ("not UTF-8 text", b"\xff\xfe\x00"),
    ],
)
def test_traces(scratch: Path, tmp_path: Path, trace: Path, says: str | tuple[str, ...], content: bytes | None) -> None:
    path = trace if content is None else tmp_path / "trace.jsonl"
    if content is not None:
        path.write_bytes(content)
    output = refused(scratch, FAILURE, says, "replay", "--model", "model", "--trace", path, "--max-len", "30")
    assert str(path) in output


def test_a_trace_that_is_not_there(scratch: Path, tmp_path: Path) -> None:
    refused(scratch, FAILURE, ("nope", "No such file"), "replay", "--model", "m", "--trace", tmp_path / "nope")


# --- other verbs ------------------------------------------------------------------------------------------------------


def test_demo_and_profile_try_their_outputs_first(scratch: Path, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    refused(scratch, USAGE, ("--output", "Not a directory"), "demo", "--output", tmp_path / "file")
    refused(scratch, USAGE, "system: nope", "demo", "--systems", "basic,nope", "--output", tmp_path / "out")
    refused(scratch, USAGE, ("--output", "Not a directory"), "profile", "model", "--output", tmp_path / "file" / "p.json")
    refused(scratch, FAILURE, "no such model directory", "profile", tmp_path / "nope", "--output", tmp_path / "p.json")


def test_model_init_leaves_what_is_there(scratch: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("precious")
    refused(scratch, FAILURE, (str(tmp_path), "not an empty directory"), "model", "init", tmp_path)
    refused(scratch, FAILURE, "Not a directory", "model", "init", tmp_path / "file" / "model")
    assert (tmp_path / "file").read_text() == "precious"


@pytest.mark.parametrize("verb", [("verify",), ("verify", "--delete"), ("stats",), ("clear", "--yes")])
def test_store_verbs_on_what_is_no_store(scratch: Path, tmp_path: Path, verb: tuple[str, ...]) -> None:
    (tmp_path / "precious").touch()
    refused(scratch, FAILURE, (str(tmp_path), "is no DualPath store"), "store", *verb, tmp_path)
    assert [one.name for one in tmp_path.iterdir()] == ["precious"]


def test_a_store_of_another_version_stops_serve(scratch: Path, tmp_path: Path, model: Path) -> None:
    (tmp_path / "store.json").write_text('{"format": "dualpath-store", "version": 99}')
    says = ("scheduler did not start", f"the store {tmp_path} has format version 99")
    output = refused(scratch, FAILURE, says, "serve", model, "--port", "0", "--store", tmp_path)
    assert "restarting" not in output


def test_weights_that_are_none_stop_serve(scratch: Path, tmp_path: Path, model: Path) -> None:
    broken = shutil.copytree(model, tmp_path / "broken")
    (broken / "model.safetensors").write_text("x")
    refused(scratch, FAILURE, ("did not start", str(broken), "safetensors"), "serve", broken, "--port", "0")


# --- LocalCluster -----------------------------------------------------------------------------------------------------


def open_fails(error: type[DualPathError], says: str, model: Path, **knobs: Any) -> None:
    before = set(Path(tempfile.gettempdir()).glob("dualpath-*"))
    with pytest.raises(error, match=says), LocalCluster(model, processes=False, **{**SMALL, **knobs}):
        pass
    assert set(Path(tempfile.gettempdir()).glob("dualpath-*")) <= before


def test_knobs_are_checked_as_flags_are(model: Path) -> None:
    for says, knobs in {
        "blok_tokens: no such setting; did you mean 'block_tokens'": {"blok_tokens": 16},
        "block_tokens: 0 is below": {"block_tokens": 0},
        "block_tokens: '16' is not a whole number": {"block_tokens": "16"},
        "prefill: True is not a whole number": {"prefill": True},
        "snic_bandwidth: 'fast' is no size": {"snic_bandwidth": "fast"},
        "read_side: 'nope' is none of": {"read_side": "nope"},
        "request_timeout_s: nan is not a finite": {"request_timeout_s": float("nan")},
        "store_capacity: None is no size": {"store_capacity": None},
    }.items():
        with pytest.raises(SettingsError, match=says):
            LocalCluster(model, **knobs)  # type: ignore[arg-type]
    with pytest.raises(SettingsError, match="system: 'nope' is none of basic"):
        LocalCluster(model, system="nope")


def test_what_is_no_model(model: Path, tmp_path: Path) -> None:
    open_fails(ModelError, "nope: no such model directory", tmp_path / "nope")
    (tmp_path / "empty").mkdir()
    open_fails(ModelError, "empty: no model here, config.json is missing", tmp_path / "empty")
    broken = shutil.copytree(model, tmp_path / "broken")
    config = json.loads((model / "config.json").read_text())
    (broken / "config.json").write_text(json.dumps({**config, "architectures": ["MambaForCausalLM"]}))
    open_fails(ModelError, "MambaForCausalLM is not supported; supported are Qwen2ForCausalLM", broken)
    (broken / "config.json").write_text(json.dumps({**config, "num_hidden_layers": "many"}))
    open_fails(ModelError, "num_hidden_layers", broken)
    (broken / "config.json").write_text("{")
    open_fails(ModelError, "config.json: cannot be read as JSON", broken)


def test_memories_that_are_too_small_are_named(model: Path) -> None:
    for knob in ("prefill_buffer", "decode_buffer", "decode_kv_memory", "prefill_kv_memory"):
        open_fails(SettingsError, f"^{knob}: holds .* less than one block", model, **{knob: 1})
        open_fails(SettingsError, f"^{knob}: holds .* less than max_len 2000", model, max_len=2000, **{knob: "256KiB"})
    open_fails(SettingsError, "max_len: 40000 exceeds the model's 32768 positions", model, max_len=40000)


def test_profiles(model: Path, tmp_path: Path) -> None:
    open_fails(SettingsError, "profile: cannot read .*nope", model, profile=tmp_path / "nope")
    (tmp_path / "profile").write_text("{}")
    open_fails(SettingsError, "profile: prefill_tokens_per_s must be a number", model, profile=str(tmp_path / "profile"))
    (tmp_path / "profile").write_text("no")
    open_fails(SettingsError, "profile: no JSON", model, profile=str(tmp_path / "profile"))


def test_stores_that_cannot_be_used(model: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("precious")
    below = tmp_path / "file" / "store"
    open_fails(
        ClusterError, f"scheduler did not start: cannot use {below} as a block store: Not a directory", model, store=below
    )
    open_fails(ClusterError, f"scheduler did not start: {tmp_path} is no DualPath store", model, store=tmp_path)
    assert [one.name for one in tmp_path.iterdir()] == ["file"]
    open_fails(ClusterError, "decision_log: cannot write .*: Not a directory", model, decision_log=below)


def test_prompts(model: Path) -> None:
    with LocalCluster(model, processes=False, max_len=100, **SMALL) as cluster:
        for error, says, prompt, params in (
            (PromptTooLong, "maximum context length is 100 tokens; the prompt has 101", range(101), {"max_tokens": 1}),
            (PromptTooLong, "the prompt has 90 and 11 more", range(90), {"max_tokens": 11}),
            (InvalidRequest, "the prompt is empty", [], {}),
            (InvalidRequest, "the prompt is empty", "", {}),
            (InvalidRequest, "token 320 is outside the vocabulary of 320", [320], {}),
            (InvalidRequest, "token -1 is outside", [-1], {}),
            (InvalidRequest, "max_tokens must be at least 1, not 0", [1], {"max_tokens": 0}),
            (InvalidRequest, "top_p must be", [1], {"top_p": float("nan")}),
            (InvalidRequest, "temperature must be", [1], {"temperature": -1.0}),
        ):
            with pytest.raises(error, match=says):
                cluster.generate(prompt, **params)
        assert len(cluster.generate(range(90), max_tokens=10, ignore_eos=True).tokens) == 10


# --- signals ----------------------------------------------------------------------------------------------------------


def _until(process: subprocess.Popen[str], words: str) -> None:
    assert process.stdout is not None
    for line in process.stdout:
        if words in line:
            return
    raise AssertionError(f"it ended without saying {words!r}")


@pytest.mark.parametrize(
    ("number", "words", "exit_status"),
    [
        (signal.SIGINT, "starting", 130),
        (signal.SIGTERM, "starting", 143),
        (signal.SIGINT, "curl", 0),
        (signal.SIGTERM, "curl", 0),
    ],
)
def test_a_signal_ends_serve_quickly(scratch: Path, model: Path, number: int, words: str, exit_status: int) -> None:
    process = start(scratch, "serve", model, "--port", "0")
    _until(process, words)
    if words == "starting":
        time.sleep(0.5)  # somewhere amid the starting of processes
    process.send_signal(number)
    output, _ = process.communicate(timeout=20)
    assert "Traceback" not in output
    assert process.returncode == exit_status, output


def test_a_second_signal_stops_what_still_runs(scratch: Path, model: Path) -> None:
    process = start(scratch, "serve", model, "--port", "0", "--served-model-name", "tiny")
    assert process.stdout is not None
    url = next(line for line in process.stdout if line.startswith("serving")).split()[-1]
    body = json.dumps({"model": "tiny", "prompt": "x", "max_tokens": 30_000, "ignore_eos": True, "stream": True}).encode()
    request = urllib.request.Request(f"{url}/v1/completions", body, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=60) as answer:
        answer.readline()  # it runs
        process.send_signal(signal.SIGINT)
        _until(process, "Ctrl-C again")
        process.send_signal(signal.SIGINT)
        rest = answer.read().decode()
    output, _ = process.communicate(timeout=20)
    assert "shutting down" in rest
    assert "Traceback" not in output
    assert process.returncode == 0, output


def test_a_signal_ends_replay(scratch: Path, model: Path, trace: Path) -> None:
    process = start(scratch, "replay", "--model", model, "--trace", trace, "--agents", "30", "--arrival-rate", "0.01")
    deadline = time.monotonic() + 40.0
    while not any(scratch.glob("dualpath-*/client-*.sock")) and time.monotonic() < deadline:
        time.sleep(0.05)
    process.send_signal(signal.SIGTERM)
    output, _ = process.communicate(timeout=20)
    assert "Traceback" not in output
    assert process.returncode == 143, output

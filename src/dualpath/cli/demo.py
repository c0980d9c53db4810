"""``dualpath demo``: what the second path brings, on this machine, in about two minutes."""

from __future__ import annotations

import random
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click
from rich.console import Console

from dualpath.cli.options import Given
from dualpath.cli.outputs import check_output_file
from dualpath.cli.replay import Replayed, Workload, chosen_systems, report_of, run_system
from dualpath.cli.report import write_report
from dualpath.cli.report_table import render_nodes, render_table
from dualpath.cli.signals import signals_held_back
from dualpath.replay.driver import ReplayOptions
from dualpath.replay.plot import SnicLoad, plot_snic_load
from dualpath.types import Role
from dualpath.workload.synthesis import demo_trajectories

SYSTEMS = ("basic", "dualpath", "oracle")
SETTINGS: dict[str, Any] = {
    "prefill": 1,
    "decode": 1,
    "block_tokens": 16,
    "max_len": 2048,
    "snic_bandwidth": "24MB/s",
    "prefill_buffer": "128MiB",
    "decode_buffer": "256MiB",
    "decode_kv_memory": "256MiB",
    "prefill_kv_memory": "64MiB",
    "write_back_buffer": "16MiB",
}
SEED = 1
PICTURE, REPORT = "snic_load.png", "report.json"


@click.command()
@click.option("--agents", default=36, show_default=True, type=click.IntRange(2), help="Agents that start together.")
@click.option("--turns", default=20, show_default=True, type=click.IntRange(2), help="Turns of an agent, about.")
@click.option("--systems", default=",".join(SYSTEMS), show_default=True, help="Systems to compare.")
@click.option("--output", default="out/demo", show_default=True, type=click.Path(), help="Where the picture and the report go.")
def demo(agents: int, turns: int, systems: str, output: str) -> None:
    """Replay agents through 1 prefill and 1 decode engine with slow storage NICs, as Basic, DualPath and Oracle."""
    console = Console()
    directory = Path(output)
    chosen = chosen_systems(systems)
    for name in (PICTURE, REPORT):
        check_output_file("--output", directory / name)
    with signals_held_back():
        from dualpath.models.create import create_model
    trajectories = demo_trajectories(random.Random(SEED), agents=agents, turns=turns)
    workload = Workload(trajectories, ReplayOptions(), SEED)
    console.print(
        f"{agents} agents, {sum(len(one.turns) for one in trajectories)} turns, a small random model, 1 prefill and 1 "
        f"decode engine on this machine;\neach node reads from storage at {SETTINGS['snic_bandwidth']}, every hit from a "
        "store on disk.\n"
    )
    with tempfile.TemporaryDirectory(prefix="dualpath-demo-") as scratch:
        model = Path(scratch) / "model"
        create_model(model)
        replays = [run_system(model, Given(SETTINGS).settings(name), workload, console) for name in chosen]
    report = report_of(replays, {"agents": agents, "turns": turns, "seed": SEED})
    console.print(render_table(report, console.width))
    console.print(render_nodes(report))
    _conclude(console, report["systems"], replays, directory)
    write_report(directory / REPORT, report)
    console.print(f"report: {directory / REPORT}\n")
    console.print(NEXT_STEPS, highlight=False, soft_wrap=True)


def _conclude(console: Console, systems: Sequence[dict[str, Any]], replays: Sequence[Replayed], directory: Path) -> None:
    first = systems[0]
    for entry in systems[1:]:
        ratio = first["jct_s"] / entry["jct_s"]
        same = entry["identical_turns"]
        tokens = "moves no bytes: an upper bound" if same is None else f"{same} of {entry['turns']} turns gave identical tokens"
        console.print(f"{entry['system']}: all agents done {ratio:.2f} x as fast as {first['system']}; {tokens}")
    picture = directory / PICTURE
    bandwidth = replays[0].settings.storage.snic_bandwidth
    loads = [_load(replay, bandwidth) for replay in replays if replay.result.transfers]
    plot_snic_load(loads, picture)
    console.print(f"storage NIC load over time: {picture}")


def _load(replay: Replayed, bandwidth: int | None) -> SnicLoad:
    roles = {node.name: Role(node.role) for node in replay.result.nodes}
    return SnicLoad(replay.result.system, replay.meter.samples, None if bandwidth is None else float(bandwidth), roles)


NEXT_STEPS = """Serve a model of your own (any Qwen2, Qwen2.5 or Qwen3 directory in Hugging Face format):

  .venv/bin/dualpath serve path/to/model --prefill 1 --decode 1 --store path/to/store
  curl http://127.0.0.1:8000/v1/chat/completions -H 'Content-Type: application/json' \\
       -d '{"model": "model", "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 16}'
"""

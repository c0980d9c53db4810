"""Entry point of the ``dualpath`` command."""

from __future__ import annotations

import importlib
import signal
import sys
from importlib.metadata import version
from types import FrameType

import click

from dualpath.cli.signals import signals_held_back
from dualpath.errors import DualPathError, SettingsError

VERBS = {
    "serve": "serve a model with an OpenAI-compatible API",
    "replay": "replay agent traces and compare systems",
    "demo": "Basic, DualPath and Oracle on this machine, in two minutes",
    "simulate": "run agents through a cluster that you do not have",
    "plan": "what the second path would bring on a cluster",
    "reproduce": "the paper's tables and figures, predicted",
    "profile": "measure this machine for a model",
    "model": "make small models",
    "store": "look after a block store",
}
"""Each verb is the command of that name in ``dualpath.cli.<verb>``, imported when used."""

EXIT_FAILURE = 1
EXIT_USAGE = 2
EXIT_INTERRUPTED = 128 + signal.SIGINT


class LazyGroup(click.Group):
    """Imports a verb when it is asked for, so that ``--help`` is quick."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(VERBS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in VERBS:
            return None
        with signals_held_back():
            command = getattr(importlib.import_module(f"dualpath.cli.{cmd_name}"), cmd_name)
        assert isinstance(command, click.Command)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(VERBS.items()))


@click.command(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(version("dualpath"), prog_name="dualpath")
def cli() -> None:
    """Serve multi-turn LLM agents over both storage paths (arXiv 2602.21548)."""


def main() -> None:
    """Run the command; what the user can mend is one line on stderr, without a traceback."""
    signal.signal(signal.SIGTERM, _terminate)
    try:
        # Outside of its standalone mode click returns the status that a command exits with.
        sys.exit(cli(prog_name="dualpath", standalone_mode=False) or 0)
    except click.exceptions.Exit as stop:
        sys.exit(stop.exit_code)
    except (KeyboardInterrupt, click.Abort):
        sys.exit(EXIT_INTERRUPTED)
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
    except DualPathError as error:
        click.echo(f"dualpath: {error}", err=True)
        sys.exit(EXIT_USAGE if isinstance(error, SettingsError) else EXIT_FAILURE)


def _terminate(number: int, frame: FrameType | None) -> None:
    """End as Ctrl-C would: whatever was started or put into temporary directories goes first."""
    raise SystemExit(128 + number)


if __name__ == "__main__":
    main()

"""The command line: the table of commands, what is set up before one runs, and how errors end it."""

import gc
import os
import sqlite3
import sys
from collections.abc import Callable
from datetime import timedelta
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

import mtn
from mtn.cli import encoders, encoding, experiments, models, queries
from mtn.cli.output import print_line
from mtn.errors import InputError
from mtn.runtime.cores import core_count
from mtn.version import __version__

SHARED = {"run": timedelta(minutes=30), "extract": timedelta(days=1)}
"""Commands for torchrun, and how long a process waits for the others: when encoding they may be hours apart."""

MODEL_COMMANDS: dict[str, Callable[..., None]] = {
    "new": models.new,
    "learn": models.learn,
    "predict": queries.predict,
    "explain": queries.explain,
    "evaluate": queries.evaluate,
    "info": models.info,
    "forget": models.forget,
    "rename": models.rename,
    "export": models.export,
    "serve": models.serve,
}
"""Those whose first argument is a model."""
COMMANDS: dict[str, Callable[..., None]] = {
    **MODEL_COMMANDS,
    "run": experiments.run,
    "compare": experiments.compare,
    "tune": experiments.tune,
    "reproduce": experiments.reproduce,
    "leaderboard": experiments.leaderboard,
    "recipes": experiments.recipes,
    "extract": encoding.extract,
    "adapt": encoding.adapt,
    "convert": encoding.convert,
    "convert-simclr": encoding.convert_simclr,
}


LIGHT = ("info", "recipes")
"""Commands that do without torch."""


class TorchCommand(TyperCommand):
    """A command that computes: torch is loaded when its arguments have been parsed, so that help is quick."""

    def invoke(self, ctx: Any) -> Any:
        """Set the number of threads, connect to the other processes of torchrun, and run the command."""
        if "torch" not in sys.modules:
            load_torch()
        if "OMP_NUM_THREADS" not in os.environ:
            import torch

            torch.set_num_threads(core_count())
        if torchrun_processes() > 1:
            from mtn.runtime import distributed

            distributed.init_process_group(SHARED[ctx.info_name])
        return super().invoke(ctx)


def load_torch() -> None:
    """Import torch, of which nothing is garbage: looking for it all the while would take a tenth longer."""
    gc.disable()
    import torch  # noqa: F401

    gc.freeze()
    gc.enable()


app = typer.Typer(no_args_is_help=True, pretty_exceptions_enable=False, rich_markup_mode=None, help=mtn.__doc__)
for name, command in COMMANDS.items():
    app.command(name, cls=TyperCommand if name in LIGHT else TorchCommand)(command)

memory = typer.Typer(no_args_is_help=True, help="Choose where a model keeps its exemplars.")
memory.command("move", cls=TorchCommand)(models.move)
memory.callback()(lambda: None)  # without a callback typer makes the only command the group itself
app.add_typer(memory, name="memory")

hub = typer.Typer(help=encoders.list_encoders.__doc__)
hub.command("get")(encoders.get)
hub.callback(invoke_without_command=True)(encoders.list_encoders)
app.add_typer(hub, name="encoders")


@app.callback(invoke_without_command=True)
def begin(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Print the version and exit.")] = False,
) -> None:
    """Answer --version, and refuse several processes where a command needs one."""
    if version:
        typer.echo(f"mtn {__version__}")
        raise typer.Exit
    command = context.invoked_subcommand
    if torchrun_processes() > 1 and command is not None and command not in SHARED:
        raise InputError(f"mtn {command} needs one process; torchrun is for mtn {' and mtn '.join(SHARED)}")


def torchrun_processes() -> int:
    """How many processes torchrun has started; 1 without it."""
    return int(os.environ.get("WORLD_SIZE", 1))


def main() -> None:
    """Run the command in sys.argv; bad input, and a disk that is full or cannot be written, are one line and exit
    code 2."""
    try:
        if torchrun_processes() > 1:
            _run_as_one_of_several()
        else:
            app()
    except InputError as error:
        for line in f"error: {error}".splitlines():
            print_line(line, err=True)
        sys.exit(2)
    except OSError as error:
        typer.echo(f"error: {describe_system_error(error)}", err=True)
        sys.exit(2)
    except sqlite3.OperationalError as error:  # the journal of a service, on a disk that is full or cannot be written
        typer.echo(f"error: a database cannot be used: {error}", err=True)
        sys.exit(2)


def describe_system_error(error: OSError) -> str:
    """The path and the reason in one line, as far as the system names them."""
    reason = (error.strerror or str(error) or type(error).__name__).splitlines()[0]
    paths = [os.fsdecode(path) for path in (error.filename, error.filename2) if isinstance(path, str | bytes)]
    return f"{' -> '.join(paths)}: {reason}" if paths else reason


def _run_as_one_of_several() -> None:
    from mtn.runtime import distributed

    try:
        app()
    except SystemExit as end:
        distributed.exit_process(end.code if isinstance(end.code, int) else 0)
        raise
    except RuntimeError as error:
        if distributed.is_lost_peer(error):
            distributed.abort()
        raise

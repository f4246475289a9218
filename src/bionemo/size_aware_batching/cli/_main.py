"""The command `size-aware-batching`: arguments in, tables out; the only place that prints and that exits."""

from __future__ import annotations

import sys
import warnings
from importlib.metadata import version
from typing import Annotated, Any

import typer

from bionemo.size_aware_batching.cli._demo import demo

__all__ = ["main"]

_PACKAGE = "bionemo-size-aware-batching"
# typer raises its usage errors as this class, which it takes from click or from its own copy of it.
_UsageError: Any = typer.BadParameter.__mro__[1]
_WRONG_USE, _INTERRUPTED = 2, 130

app = typer.Typer(add_completion=True, no_args_is_help=False, rich_markup_mode=None)


@app.callback(invoke_without_command=True)
def _root(
    context: typer.Context,
    version_asked: Annotated[bool, typer.Option("--version", help="Print the version and exit.")] = False,
) -> None:
    """Batches that fill a memory budget and never run out of memory."""
    if version_asked:
        typer.echo(version(_PACKAGE))
    elif context.invoked_subcommand is None:
        typer.echo(context.get_help())


app.command()(demo)


def main() -> None:
    """Run the command; a wrong argument or file is one line on standard error and exit code 2."""
    warnings.showwarning = _show_warning
    try:
        code = app(standalone_mode=False)
    except _UsageError as error:
        _fail(error.format_message())
    except (ValueError, TypeError, OSError) as error:
        _fail(str(error))
    except (typer.Abort, KeyboardInterrupt):
        typer.echo("interrupted", err=True)
        sys.exit(_INTERRUPTED)
    sys.exit(code if isinstance(code, int) else 0)


def _fail(text: str) -> None:
    typer.echo(f"size-aware-batching: error: {' '.join(text.split())}", err=True)
    sys.exit(_WRONG_USE)


def _show_warning(message: Warning | str, *_: object, **__: object) -> None:
    typer.echo(f"size-aware-batching: warning: {message}", err=True)

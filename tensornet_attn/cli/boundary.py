"""The one place where errors become messages and exit codes: no user's mistake ends in a traceback."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Callable, Sequence

from tensornet_attn.errors import DesignError, MissingPartError, TensornetError

FINE, WRONG_INPUT, WRONG_USAGE, MISSING_PART = 0, 1, 2, 3
COMPLETION = "_TENSORNET_ATTN_COMPLETE"  # set by the script that a shell has for completion
INTERRUPTED, BROKEN_PIPE = 128 + 2, 128 + 13  # what a shell says of a process that the signal ended


def run(arguments: Sequence[str] | None = None) -> int:
    """Runs one command line, by default the process's own, and returns its exit code; all errors end here."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # a terminal that cannot show a sign gets its number
    return guarded(lambda: _command(sys.argv[1:] if arguments is None else arguments))


def guarded(action: Callable[[], int]) -> int:
    """The action's exit code, or the message and the code of the error it raised."""
    try:
        code = action()
        sys.stdout.flush()
        return code
    except TensornetError as error:
        message = str(error)
        if isinstance(error, DesignError):  # each problem keeps `file:line:column` at the start of a line, for editors
            count = sum(problem.severity == "error" for problem in error.problems)
            message = f"the {error.what} is refused: {count} problem{'s' if count != 1 else ''}.\n{error}"
        return _say(message, MISSING_PART if isinstance(error, MissingPartError) else WRONG_INPUT)
    except KeyboardInterrupt as interruption:
        return _say(str(interruption) or "interrupted.", INTERRUPTED)
    except BrokenPipeError:
        # The reader has gone. Python flushes stdout once more at exit: let it flush into nothing.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return BROKEN_PIPE
    except OSError as error:
        subject = f"'{error.filename}': " if error.filename is not None else ""
        return _say(f"{subject}{error.strerror or error}.", WRONG_INPUT)


def _command(arguments: Sequence[str]) -> int:
    """Parses and runs by typer's own steps, without its handlers, so that errors come out as they are."""
    import typer

    from tensornet_attn.cli.app import app

    try:
        command = typer.main.get_command(app)
        if COMPLETION in os.environ:  # a shell asks what may follow; typer answers and raises SystemExit
            command(list(arguments), prog_name="tensornet-attn")
        with command.make_context("tensornet-attn", list(arguments)) as context:
            command.invoke(context)
        return FINE
    except SystemExit as finished:  # of completion, which answers or installs itself
        return int(finished.code or FINE)
    except typer.Exit as finished:
        return finished.exit_code
    except Exception as error:
        if not hasattr(error, "exit_code") or not hasattr(error, "show"):
            raise
        error.show(sys.stderr)  # a mistake in the command line itself: typer's message and usage
        return int(error.exit_code)


def _say(message: str, code: int) -> int:
    print(f"error: {message}", file=sys.stderr)
    return code

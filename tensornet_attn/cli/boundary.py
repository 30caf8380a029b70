"""Turns errors into messages and exit codes. Invalid input never causes a traceback."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Callable, Sequence

from tensornet_attn.errors import DesignError, MissingPartError, TensornetError

FINE, WRONG_INPUT, WRONG_USAGE, MISSING_PART = 0, 1, 2, 3
COMPLETION = "_TENSORNET_ATTN_COMPLETE"  # set by the completion script of the shell
INTERRUPTED, BROKEN_PIPE = 128 + 2, 128 + 13  # a shell reports 128 + signal for a process that a signal ended


def run(arguments: Sequence[str] | None = None) -> int:
    """Runs a command line, by default that of the process, and returns its exit code. It handles all errors."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # escape characters that the terminal cannot encode
    return guarded(lambda: _command(sys.argv[1:] if arguments is None else arguments))


def guarded(action: Callable[[], int]) -> int:
    """Runs the action and returns its exit code. Prints errors, and returns their exit codes."""
    try:
        code = action()
        sys.stdout.flush()
        return code
    except TensornetError as error:
        message = str(error)
        if isinstance(error, DesignError):  # each problem starts a line with `file:line:column`, for editors
            count = sum(problem.severity == "error" for problem in error.problems)
            message = f"the {error.what} is refused: {count} problem{'s' if count != 1 else ''}.\n{error}"
        return _say(message, MISSING_PART if isinstance(error, MissingPartError) else WRONG_INPUT)
    except KeyboardInterrupt as interruption:
        return _say(str(interruption) or "interrupted.", INTERRUPTED)
    except BrokenPipeError:
        # The reader closed the pipe. Python flushes stdout again at exit, so redirect it to the null device.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return BROKEN_PIPE
    except OSError as error:
        subject = f"'{error.filename}': " if error.filename is not None else ""
        return _say(f"{subject}{error.strerror or error}.", WRONG_INPUT)


def _command(arguments: Sequence[str]) -> int:
    """Parses and runs a command without Typer's error handlers, so that errors propagate unchanged."""
    import typer

    from tensornet_attn.cli.app import app

    try:
        command = typer.main.get_command(app)
        if COMPLETION in os.environ:  # the shell requests completions; Typer prints them and raises SystemExit
            command(list(arguments), prog_name="tensornet-attn")
        with command.make_context("tensornet-attn", list(arguments)) as context:
            command.invoke(context)
        return FINE
    except SystemExit as finished:  # raised when completion was printed or installed
        return int(finished.code or FINE)
    except typer.Exit as finished:
        return finished.exit_code
    except Exception as error:
        if not hasattr(error, "exit_code") or not hasattr(error, "show"):
            raise
        error.show(sys.stderr)  # an invalid command line: Typer's message and usage
        return int(error.exit_code)


def _say(message: str, code: int) -> int:
    print(f"error: {message}", file=sys.stderr)
    return code

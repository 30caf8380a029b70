"""The command `playground`: serves the page of `make playground` on this machine and opens it."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import Annotated

import typer

from tensornet_attn.cli.options import Text, flag, option

BUILT = Path(__file__).resolve().parents[2] / "build" / "playground"  # of a clone


def playground(
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port; 0 selects a free port.")] = 8000,
    browser: Annotated[bool, flag("--browser/--no-browser", "Open the page in a browser.")] = True,
    folder: Annotated[Text, option("Built page. [default: build/playground of the clone]", "FOLDER")] = None,
) -> None:
    """Serve the playground and open it in a browser.

    The playground checks, draws and prices designs while you edit them.
    """
    from tensornet_attn.cli.serve import HOST, server
    from tensornet_attn.errors import MissingPartError

    page = BUILT if folder is None else Path(folder)
    if not (page / "index.html").is_file():
        raise MissingPartError(
            f"'{page}' contains no playground; run 'make playground' in a clone of the project, which needs Node.js, "
            "or give the folder of a built page with --folder."
        )
    try:
        serving = server(page, port)
    except OSError as error:
        if error.errno not in (errno.EADDRINUSE, errno.EACCES):
            raise
        reason = "is in use" if error.errno == errno.EADDRINUSE else "needs higher privileges"
        raise typer.BadParameter(
            f"port {port} {reason}; use --port 0 for a free port.", param_hint="'--port'"
        ) from None
    with serving:
        address = f"http://{HOST}:{serving.server_port}/"
        print(f"the playground is at {address}; press Ctrl-C to stop.", flush=True)
        if browser:
            import webbrowser

            webbrowser.open(address)
        try:
            serving.serve_forever()
        except KeyboardInterrupt:
            print()

"""The command `playground`: serves the page that `make playground` builds, to this machine alone, and opens it."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import Annotated

import typer

from tensornet_attn.cli.options import Text, flag, option

BUILT = Path(__file__).resolve().parents[2] / "build" / "playground"  # of a clone


def playground(
    port: Annotated[int, typer.Option(min=0, max=65535, help="0 takes a free one.")] = 8000,
    browser: Annotated[bool, flag("--browser/--no-browser", "Open the page in a browser.")] = True,
    folder: Annotated[Text, option("The built page; build/playground of the clone if absent.", "FOLDER")] = None,
) -> None:
    """Serve the playground, a page that checks, draws and prices designs in the browser."""
    from tensornet_attn.cli.serve import HOST, server
    from tensornet_attn.errors import MissingPartError

    page = BUILT if folder is None else Path(folder)
    if not (page / "index.html").is_file():
        raise MissingPartError(
            f"'{page}' holds no playground: run 'make playground' in a clone of the project, which needs Node.js, or "
            "name the folder of a built page with --folder."
        )
    try:
        serving = server(page, port)
    except OSError as error:
        if error.errno not in (errno.EADDRINUSE, errno.EACCES):
            raise
        reason = "is in use" if error.errno == errno.EADDRINUSE else "needs more rights"
        raise typer.BadParameter(f"port {port} {reason}; --port 0 takes a free one.", param_hint="'--port'") from None
    with serving:
        address = f"http://{HOST}:{serving.server_port}/"
        print(f"the playground is at {address}; Ctrl-C ends it.", flush=True)
        if browser:
            import webbrowser

            webbrowser.open(address)
        try:
            serving.serve_forever()
        except KeyboardInterrupt:
            print()

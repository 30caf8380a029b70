"""The process of a worker: `python -m tensornet_attn.search`, told on standard input what to do, as one line of JSON.

Its last line on standard output says, as JSON, what has gone wrong. It ends when the process that started it does.
"""

from __future__ import annotations

from tensornet_attn.search.process import Identity

if __name__ == "__main__":
    import json
    import sys

    from tensornet_attn.search.worker import serve

    told = json.loads(sys.stdin.readline())
    sys.exit(serve(told["out"], told["storage"], told["name"], Identity(**told["parent"])))

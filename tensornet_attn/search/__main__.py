"""The process of a worker: `python -m tensornet_attn.search` reads its arguments as a line of JSON on standard input.

If it fails, it writes the error as JSON in its last line on standard output. It ends when standard input is closed.
"""

if __name__ == "__main__":
    import json
    import sys

    from tensornet_attn.search.worker import serve

    sys.exit(serve(**json.loads(sys.stdin.readline())))

"""The process of a worker: `python -m tensornet_attn.search`, told on standard input what to do, as one line of JSON.

Its last line on standard output says, as JSON, what has gone wrong. It ends when its standard input does.
"""

if __name__ == "__main__":
    import json
    import sys

    from tensornet_attn.search.worker import serve

    sys.exit(serve(**json.loads(sys.stdin.readline())))

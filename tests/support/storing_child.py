"""A process that attaches as an engine, begins a store and hangs in it; `python -m support.storing_child SOCKET`.

It says "copying" once its rank counts as a copier, and waits to be killed.
"""

import sys
import time
from pathlib import Path

from support.attach_client import Engine, hello, key

CHUNKS = 10


def main() -> None:
    with Engine(Path(sys.argv[1]), hello(engine="doomed")) as engine:
        engine.begin_store([key(number) for number in range(CHUNKS)])
        print("copying", flush=True)
        time.sleep(600)


if __name__ == "__main__":
    main()

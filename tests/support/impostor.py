"""A process that attaches with a pidfd of another process: `python -m support.impostor SOCKET WHOSE`.

WHOSE is `child` (one that lives on), `ended` (one that has ended) or `own`. It prints the answer's tag and code.
"""

import os
import subprocess
import sys
from pathlib import Path

from blockyard.common.messages import attach
from support.attach_client import Session, hello


def main(path: str, whose: str) -> None:
    child = subprocess.Popen(["sleep", "60"])
    descriptor = os.pidfd_open(os.getpid() if whose == "own" else child.pid)
    if whose == "ended":
        child.kill()
        child.wait()
    try:
        session = Session(Path(path), hello(engine="impostor"), [descriptor])
        print(session.answer.code if isinstance(session.answer, attach.Refused) else "welcome")
    finally:
        child.kill()


if __name__ == "__main__":
    main(*sys.argv[1:])

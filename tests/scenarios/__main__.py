"""`python -m scenarios [--rewrite] [name …]`: run all scenarios or those named; show, or record, what is different."""

from __future__ import annotations

import argparse
import sys

from scenarios.record import commands, difference, record, scripts
from scenarios.script import ScriptError


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="scenarios",
        description="Runs the scripted scenarios of the cores.",
        epilog="commands of a scenario:\n\n" + "\n".join(commands()),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("names", nargs="*", help="files without their ending (default: all)")
    parser.add_argument("--rewrite", action="store_true", help="record what happens now; review the diff like code")
    arguments = parser.parse_args()
    paths = [path for path in scripts() if not arguments.names or path.stem in arguments.names]
    if not paths:
        parser.error(f"there is no scenario {' or '.join(arguments.names)}")
    differing = 0
    for path in paths:
        text = path.read_text(encoding="utf-8")
        try:
            if change := difference(path.name, text):
                differing += 1
                print(path.name if arguments.rewrite else change)
                if arguments.rewrite:
                    path.write_text(record(path.name, text), encoding="utf-8")
        except ScriptError as error:
            differing += 1
            print(error)
    word = "recorded anew" if arguments.rewrite else "different"
    print(f"{len(paths)} scenarios, {differing} {word}")
    return 1 if differing and not arguments.rewrite else 0


if __name__ == "__main__":
    sys.exit(main())

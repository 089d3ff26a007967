"""Writes the dashboards as Grafana reads them: `python dashboards/build.py [folder]`, else to `json`.

Owns file names and JSON form, nothing of what a dashboard shows. Needs the `dashboards` extra.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from grafana_foundation_sdk.cog.encoder import JSONEncoder
from overview import overview

DASHBOARDS = {"overview.json": overview}


def main(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, build in DASHBOARDS.items():
        text = json.dumps(build(), cls=JSONEncoder, indent=2, sort_keys=True)
        (folder / name).write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent / "json")

"""docs/disk-format.md against the code: each field of each header and record, where it lies and how large it is."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from blockyard.worker.disk.format import extent_header, layout, log, segment_header

PAGE = (Path(__file__).parents[2] / "docs" / "disk-format.md").read_text(encoding="utf-8")


def table(heading: str) -> list[tuple[str, ...]]:
    """Cells of the first table below a heading, without its own head."""
    _, _, rest = PAGE.partition(f"\n{heading}\n")
    assert rest, heading
    lines = re.search(r"^\|.*\n\|[-|]*\n((?:\|.*\n)+)", rest, re.MULTILINE)
    assert lines
    return [tuple(cell.strip().strip("`") for cell in line.split("|")[1:-1]) for line in lines[1].splitlines()]


def told(heading: str) -> list[tuple[str, ...]]:
    return [row[:4] for row in table(heading)]


def rows(found: list[tuple[int, int, str, str]]) -> list[tuple[str, ...]]:
    return [tuple(map(str, row)) for row in found]


@pytest.mark.parametrize(
    ("heading", "coded"),
    [
        ("## Segment header", segment_header.LAYOUT),
        ("## Extent", extent_header.LAYOUT),
        ("## Log", log.LAYOUT),
    ],
)
def test_a_header_is_told_field_by_field(heading: str, coded: layout.Layout) -> None:
    assert told(heading) == rows(coded.rows())
    constants = {name: text for _, _, name, _, text in table(heading)}
    assert constants["magic"] == coded.magic.decode()
    assert constants["version"] == str(layout.VERSION)
    assert constants["header_bytes"] == str(coded.size)


def test_the_frame_is_told() -> None:
    offset, coded = 0, []
    for field in log.FRAME_FIELDS:
        coded.append((offset, field.size, field.name, field.type))
        offset += field.size
    assert told("### Frame") == rows(coded)
    assert offset == log.FRAME.size
    assert log.FRAME.format == "<" + "".join(field.code for field in log.FRAME_FIELDS)
    assert str(log.MAX_PAYLOAD) in table("### Frame")[0][4]


def test_what_headers_have_in_common_is_told() -> None:
    for (_, size, name, kind), field in zip(told("## What all headers have in common"), layout.PREFIX, strict=False):
        assert (size, name, kind) == (str(field.size), field.name, field.type)


def test_every_record_is_told_with_its_fields() -> None:
    coded = {str(kind.__struct_config__.tag): list(kind.__struct_fields__) for kind in log.Record.__args__}
    assert {name: re.findall(r"\w+", fields) for name, fields, _ in table("### Records")} == coded


def test_the_version_is_told() -> None:
    assert f"format version {layout.VERSION}" in PAGE

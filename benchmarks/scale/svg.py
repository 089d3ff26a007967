"""Line charts as SVG, written by hand: axes with round ticks, lines with dots, a legend. Owns the drawing; knows
nothing of what is drawn.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

_WIDTH, _HEIGHT = 640, 360
_LEFT, _RIGHT, _TOP, _BOTTOM = 74, 20, 54, 52
_COLOURS = ("#1f6feb", "#d1242f", "#1a7f37", "#9a6700", "#8250df")
_GRID, _INK = "#d0d7de", "#24292f"
_STEPS = (1.0, 2.0, 2.5, 5.0, 10.0)
_TICKS = 6


@dataclass(frozen=True, slots=True)
class Line:
    """Points in the order of x. A dashed line is a goal or a bound."""

    name: str
    points: Sequence[tuple[float, float]]
    dashed: bool = False


@dataclass(frozen=True, slots=True)
class _Axis:
    """From 0 to a round number, on so many pixels."""

    top: float
    step: float
    begin: float
    end: float

    @staticmethod
    def over(values: Sequence[float], begin: float, end: float) -> _Axis:
        largest = max([value for value in values if math.isfinite(value)], default=0.0) or 1.0
        scale = 10.0 ** math.floor(math.log10(largest / _TICKS))
        step = next(one * scale for one in _STEPS if largest / (one * scale) <= _TICKS)
        return _Axis(step * math.ceil(largest / step - 1e-9), step, begin, end)

    def at(self, value: float) -> float:
        return self.begin + (self.end - self.begin) * value / self.top

    def ticks(self) -> list[float]:
        return [self.step * number for number in range(round(self.top / self.step) + 1)]


def chart(title: str, x_name: str, y_name: str, lines: Sequence[Line]) -> str:
    """The text of an SVG file."""
    x_axis = _Axis.over([x for line in lines for x, _ in line.points], _LEFT, _WIDTH - _RIGHT)
    y_axis = _Axis.over([y for line in lines for _, y in line.points], _HEIGHT - _BOTTOM, _TOP)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" '
        'font-family="system-ui, sans-serif" font-size="12">',
        f'<rect width="{_WIDTH}" height="{_HEIGHT}" fill="#ffffff"/>',
        _text(_LEFT, 20, title, size=14),
        *_grid(x_axis, y_axis),
        _text((_LEFT + _WIDTH - _RIGHT) / 2, _HEIGHT - 12, x_name, anchor="middle"),
        f'<g transform="translate(16 {(_TOP + _HEIGHT - _BOTTOM) / 2:.0f}) rotate(-90)">'
        f"{_text(0, 0, y_name, anchor='middle')}</g>",
        *(_drawn(line, number, x_axis, y_axis) for number, line in enumerate(lines)),
        *_legend(lines),
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


def _grid(x_axis: _Axis, y_axis: _Axis) -> list[str]:
    parts = []
    for tick in y_axis.ticks():
        y = y_axis.at(tick)
        parts.append(f'<path d="M{_LEFT} {y:.1f}H{_WIDTH - _RIGHT}" stroke="{_GRID}"/>')
        parts.append(_text(_LEFT - 6, y + 4, _number(tick), anchor="end"))
    for tick in x_axis.ticks():
        x = x_axis.at(tick)
        parts.append(f'<path d="M{x:.1f} {_HEIGHT - _BOTTOM}v4" stroke="{_INK}"/>')
        parts.append(_text(x, _HEIGHT - _BOTTOM + 18, _number(tick), anchor="middle"))
    parts.append(f'<path d="M{_LEFT} {_HEIGHT - _BOTTOM}H{_WIDTH - _RIGHT}" stroke="{_INK}"/>')
    return parts


def _drawn(line: Line, number: int, x_axis: _Axis, y_axis: _Axis) -> str:
    colour = _COLOURS[number % len(_COLOURS)]
    places = [(x_axis.at(x), y_axis.at(y)) for x, y in line.points]
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
    dash = ' stroke-dasharray="6 4"' if line.dashed else ""
    drawn = f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"{dash}/>'
    if line.dashed or len(places) > 40:
        return drawn
    return drawn + "".join(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{colour}"/>' for x, y in places)


def _legend(lines: Sequence[Line]) -> list[str]:
    parts = []
    x = float(_LEFT)
    for number, line in enumerate(lines):
        colour = _COLOURS[number % len(_COLOURS)]
        parts.append(f'<path d="M{x:.0f} 38h16" stroke="{colour}" stroke-width="2"/>')
        parts.append(_text(x + 21, 42, line.name))
        x += 36 + 6.6 * len(line.name)
    return parts


def _text(x: float, y: float, text: str, *, anchor: str = "start", size: int = 12) -> str:
    place = f'x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-size="{size}" fill="{_INK}"'
    return f"<text {place}>{escape(text)}</text>"


def _number(value: float) -> str:
    return f"{value:,.10g}"

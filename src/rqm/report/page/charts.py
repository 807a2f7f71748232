"""Charts as SVG that takes its colours from the page, in light and dark."""

from dataclasses import dataclass
from html import escape
from typing import Any, final

import numpy as np
from matplotlib.ticker import MaxNLocator

from rqm._util.checks import FloatArray

WIDTH, HEIGHT = 520, 300
LEFT, RIGHT, TOP, BOTTOM = 76, 12, 12, 40


@final
@dataclass(frozen=True)
class Line:
    """One line of a chart, perhaps with a band around it; ``colour`` counts those of the page."""

    name: str
    x: FloatArray
    y: FloatArray
    colour: int = 0
    half: FloatArray | None = None


def lines(given: list[Line], x_label: str, y_label: str) -> str:
    """A chart of lines with bands; every point tells its value when pointed at."""
    x = np.concatenate([line.x for line in given])
    spread = [line.y - line.half for line in given if line.half is not None]
    spread += [line.y + line.half for line in given if line.half is not None]
    frame = _Frame(x, np.concatenate([line.y for line in given] + spread))
    parts = [frame.axes(x_label, y_label)]
    for line in given:
        colour = f"var(--s{line.colour % 8})"
        if line.half is not None:
            up, down = frame.points(line.x, line.y + line.half), frame.points(line.x, line.y - line.half)
            parts.append(f'<polygon class="band" fill="{colour}" points="{_join([*up, *down[::-1]])}"/>')
        points = frame.points(line.x, line.y)
        parts.append(f'<polyline class="line" stroke="{colour}" points="{_join(points)}"/>')
        parts += [
            f'<circle cx="{a:.1f}" cy="{b:.1f}" r="{2.4 if len(points) <= 60 else 1}" fill="{colour}">'
            f"<title>{escape(line.name)}: {x_label} {x0:g}, {y0:.4g}</title></circle>"
            for (a, b), x0, y0 in zip(points, line.x, line.y, strict=True)
        ]
    return _svg("".join(parts), f"{y_label} against {x_label}") + legend([(line.name, line.colour) for line in given])


def bars(groups: dict[str, FloatArray], x: FloatArray, x_label: str, y_label: str) -> str:
    """Bars at each x, side by side for each group."""
    step = float(x[1] - x[0]) if len(x) > 1 else 1.0
    top = max(float(values.max()) for values in groups.values())
    frame = _Frame(np.array([x[0] - step / 2, x[-1] + step / 2]), np.array([0.0, top]))
    wide = step / (len(groups) + 0.6)
    parts = [frame.axes(x_label, y_label)]
    for number, (name, values) in enumerate(groups.items()):
        for at, value in zip(x, values, strict=True):
            start = at - step / 2 + 0.3 * wide + number * wide
            (a, b), (c, d) = frame.points(np.array([start, start + wide]), np.array([value, 0.0]))
            parts.append(
                f'<rect class="bar" fill="var(--s{number})" x="{a:.1f}" y="{b:.1f}" width="{c - a:.1f}" '
                f'height="{max(0.0, d - b):.1f}"><title>{escape(name)}: {at:.4g}, {value:.4g}</title></rect>'
            )
    return _svg("".join(parts), f"{y_label} against {x_label}") + legend([(n, i) for i, n in enumerate(groups)])


def split(parts: dict[str, float], unit: str) -> str:
    """One bar cut into parts, and what each is."""
    total = sum(parts.values()) or 1.0
    cut = "".join(
        f'<i style="width:{100 * value / total:.2f}%;background:var(--s{number})" title="{escape(name)}"></i>'
        for number, (name, value) in enumerate(parts.items())
    )
    names = [(f"{name}: {value:.3g} {unit}, {value / total:.0%}", i) for i, (name, value) in enumerate(parts.items())]
    return f'<div class="split" role="img" aria-label="shares">{cut}</div>{legend(names)}'


def legend(names: list[tuple[str, int]]) -> str:
    """The names of colours."""
    return (
        '<div class="legend">'
        + "".join(
            f'<span><i style="background:var(--s{colour % 8})"></i>{escape(name)}</span>' for name, colour in names
        )
        + "</div>"
    )


class _Frame:
    """Where things lie in a chart."""

    def __init__(self, x: FloatArray, y: FloatArray) -> None:
        self.x, self.y = _range(x), _range(y)

    def points(self, x: Any, y: Any) -> list[tuple[float, float]]:
        (x0, x1), (y0, y1) = self.x, self.y
        across = LEFT + (np.asarray(x) - x0) / (x1 - x0) * (WIDTH - LEFT - RIGHT)
        down = HEIGHT - BOTTOM - (np.asarray(y) - y0) / (y1 - y0) * (HEIGHT - TOP - BOTTOM)
        return list(zip(across.tolist(), down.tolist(), strict=True))

    def axes(self, x_label: str, y_label: str) -> str:
        out = []
        for value in _ticks(self.y):
            ((_, b),) = self.points([self.x[0]], [value])
            out.append(f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{b:.1f}" y2="{b:.1f}"/>')
            out.append(f'<text x="{LEFT - 6}" y="{b + 4:.1f}" text-anchor="end">{value:.4g}</text>')
        for value in _ticks(self.x, whole=x_label == "round"):
            ((a, _),) = self.points([value], [self.y[0]])
            out.append(f'<text x="{a:.1f}" y="{HEIGHT - BOTTOM + 16}" text-anchor="middle">{value:.4g}</text>')
        middle = (LEFT + WIDTH - RIGHT) / 2
        out.append(f'<text x="{middle}" y="{HEIGHT - 5}" text-anchor="middle">{escape(x_label)}</text>')
        out.append(
            f'<text transform="translate(13,{(TOP + HEIGHT - BOTTOM) / 2}) rotate(-90)" text-anchor="middle">'
            f"{escape(y_label)}</text>"
        )
        return "".join(out)


def _range(values: FloatArray) -> tuple[float, float]:
    values = values[np.isfinite(values)]
    low, high = (float(values.min()), float(values.max())) if len(values) else (0.0, 1.0)
    return (low, high) if high > low else (low - 0.5, high + 0.5)


def _ticks(ends: tuple[float, float], *, whole: bool = False) -> list[float]:
    found = MaxNLocator(6, integer=whole).tick_values(*ends)
    return [float(value) for value in found if ends[0] - 1e-9 <= value <= ends[1] + 1e-9]


def _join(points: list[tuple[float, float]]) -> str:
    return " ".join(f"{a:.1f},{b:.1f}" for a, b in points)


def _svg(inside: str, label: str) -> str:
    return f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(label)}">{inside}</svg>'

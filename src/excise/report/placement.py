"""Where everything lies in a plot, on the page and in pictures alike: the axes, and texts that cover nothing that is drawn."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from statistics import median
from typing import Literal

from excise.evals.figure import Bars, Estimate, Plot, Point, Series
from excise.report.numbers import linear_ticks, log_ticks, number, tick_labels

MARGIN, REACH = 0.06, 0.1
"""Room beyond what is drawn, and how far an interval may always reach beyond the points, as shares of an axis."""
MOST_LABELS = 12
"""Texts beside the points of a plot; where there are more, none is."""


@dataclass(frozen=True)
class Axis:
    """Numbers and where they lie."""

    low: float
    high: float
    log: bool
    start: float
    end: float
    named: Mapping[str, float] = field(default_factory=dict)
    """Ticks, where they are not round numbers."""

    def at(self, value: float) -> float:
        """The place of a number; what a log axis has no place for is at its beginning."""
        here = max(value, self.low) if self.log else value
        low, high, here = (math.log(v) if self.log else v for v in (self.low, self.high, here))
        return self.start + (self.end - self.start) * (here - low) / (high - low)

    @property
    def ticks(self) -> list[tuple[float, str]]:
        """Numbers, and what stands there."""
        if self.named:
            return [(value, name) for name, value in self.named.items()]
        ticks = log_ticks(self.low, self.high) if self.log else linear_ticks(self.low, self.high)
        return list(zip(ticks, tick_labels(ticks, self.log), strict=True))


@dataclass(frozen=True)
class Frame:
    """The axes of a plot and the room for a letter and for a line of text, in the units of a drawing; y grows downwards."""

    x: Axis
    y: Axis
    letter: float
    line: float


Box = tuple[float, float, float, float]
"""Left, top, right and bottom."""


@dataclass(frozen=True)
class Text:
    words: str
    box: Box
    side: Literal["left", "center", "right"]
    """Of the box, at which the words begin or end."""
    series: Series | None = None

    @property
    def place(self) -> tuple[float, float]:
        """Of the middle of that side."""
        left, top, right, bottom = self.box
        return {"left": left, "right": right, "center": (left + right) / 2}[self.side], (top + bottom) / 2


def ends(of: Estimate) -> list[float]:
    return [of.value, *(end for end in (of.low, of.high) if end is not None)]


def drawable(panel: Plot, point: Point) -> bool:
    return (point.x.value > 0 or not panel.x_log) and (point.y.value > 0 or not panel.y_log)


def limits_of(panel: Plot) -> tuple[tuple[float, float], tuple[float, float]]:
    """The ends of both axes of a plot."""
    points = [point for series in panel.series for point in series.points if drawable(panel, point)]
    marked = [*panel.x_levels.values(), *panel.x_ticks.values()]
    return (
        limits([point.x for point in points], marked, panel.x_log),
        limits([point.y for point in points], panel.levels.values(), panel.y_log),
    )


def limits(estimates: Sequence[Estimate], others: Iterable[float], log: bool) -> tuple[float, float]:
    """The ends of an axis around all numbers, and around their intervals as far as most of these reach."""
    values = _drawn([*(of.value for of in estimates), *others], log) or [0.0]
    intervals = [drawn for of in estimates if len(drawn := _drawn(ends(of), log)) > 1]
    low, high = min(values), max(values)
    arms = [max(abs(end - value) for end in reached) for value, *reached in intervals]
    reach = max(REACH * (high - low), median(arms or [0.0]))
    reached = [end for interval in intervals for end in interval]
    low, high = max(low - reach, min([low, *reached])), min(high + reach, max([high, *reached]))
    room = (high - low) * MARGIN or abs(high) * 0.1 or 1.0
    return (math.exp(low - room), math.exp(high + room)) if log else (low - room, high + room)


def bar_limits(panel: Bars) -> tuple[float, float]:
    """The ends of the axis of bars, around their intervals as far as these reach no further than the bars themselves."""
    estimates = [of for bars in panel.bars.values() for of in bars if of]
    values, reached = [0.0, *(of.value for of in estimates)], [end for of in estimates for end in ends(of)]
    low, high = min(values), max(values)
    reach = (high - low) or math.inf
    return max(low - reach, min([low, *reached])), min(high + reach, max([high, *reached]))


def cut_off(of: Estimate, limits: tuple[float, float]) -> Estimate:
    """The same, its interval only as far as it is drawn."""
    low, high = (None if end is None else min(max(end, limits[0]), limits[1]) for end in (of.low, of.high))
    return Estimate(of.value, low, high)


def _drawn(values: Iterable[float], log: bool) -> list[float]:
    return [math.log(value) if log else value for value in values if value > 0 or not log]


def is_banded(series: Series, points: Sequence[Point]) -> bool:
    """Whether intervals are a band: they are where a line has one everywhere, and whiskers elsewhere."""
    return series.line and len(points) > 2 and all(p.y.low is not None and p.y.high is not None for p in points)


def place_texts(panel: Plot, frame: Frame) -> list[Text]:
    """The texts of points that find a free side of their point, and then the names of levels where they cover least."""
    taken, lines = [box for series in panel.series for box in _ink(panel, series, frame)], _level_lines(panel, frame)
    placed = _beside_points(panel, frame, taken, lines)
    names = [_along_row(_named(*of, panel.y_label), of[1], frame) for of in panel.levels.items()]
    names += [_along_column(_named(*of, panel.x_label), of[1], frame) for of in panel.x_levels.items()]
    for candidates in names:
        others = [*taken, *lines, *50 * [text.box for text in placed]]
        placed = [*placed, min(candidates, key=lambda text: _covered(text, others, frame))]
    return placed


def _named(name: str, level: float, axis_label: str) -> str:
    """A level with its number, in percent where its axis is."""
    return f"{name} {number(level)}{' %' if axis_label.endswith('%') else ''}"


def _beside_points(panel: Plot, frame: Frame, taken: Sequence[Box], lines: Sequence[Box]) -> list[Text]:
    """Texts on a side of their point that is free, rather on one that no level crosses; ends of lines choose first."""
    asked = [(s, p) for s in panel.series if s.markers for p in reversed(s.points) if p.text and drawable(panel, p)]
    placed: list[Text] = []
    for series, point in asked if len(asked) <= MOST_LABELS else ():
        others = [*taken, *(text.box for text in placed)]
        free = [text for text in _sides(series, point, frame) if not _covered(text, others, frame)]
        placed += [min(free, key=lambda text: _covered(text, lines, frame))] if free else []
    return placed


def _sides(series: Series, point: Point, frame: Frame) -> list[Text]:
    """Right and left of a point, there somewhat higher or lower too, and above and below it."""
    x, y, line = frame.x.at(point.x.value), frame.y.at(point.y.value), frame.line
    wide, gap = frame.letter * len(point.text), 0.55 * line
    lefts: Mapping[Literal["left", "center", "right"], float]
    lefts = {"left": x + gap, "right": x - gap - wide, "center": x - wide / 2}
    beside = (-0.5, -1.2, 0.2, -1.8, 0.8)
    tops = {"left": beside, "right": beside, "center": (-1.6, 0.6)}
    return [
        Text(point.text, (left, y + top * line, left + wide, y + (top + 1) * line), side, series)
        for side, left in lefts.items()
        for top in tops[side]
    ]


def _along_row(words: str, level: float, frame: Frame) -> list[Text]:
    """Above and below a horizontal line, first at its ends."""
    x, line, wide, at = frame.x, frame.line, frame.letter * len(words), frame.y.at(level)
    first, last = x.start + line / 4, x.end - wide
    lefts = [last, first, *(first + (last - first) * i / 6 for i in range(1, 6))]
    tops = [at - 1.1 * line, at + 0.1 * line, at - 2 * line, at + line]
    boxes = [(left, top, left + wide, top + line) for top in tops for left in lefts]
    return [Text(words, box, "right" if box[0] == last else "left") for box in boxes]


def _along_column(words: str, level: float, frame: Frame) -> list[Text]:
    """Right and left of a vertical line, first at its top."""
    y, line, wide, at = frame.y, frame.line, frame.letter * len(words), frame.x.at(level)
    tops = [y.end + (y.start - y.end - line) * i / 8 for i in range(9)]
    right = [Text(words, (at + line / 3, top, at + line / 3 + wide, top + line), "left") for top in tops]
    left = [Text(words, (at - line / 3 - wide, top, at - line / 3, top + line), "right") for top in tops]
    return [*right, *left]


def _covered(text: Text, taken: Iterable[Box], frame: Frame) -> int:
    """How much a text would cover; what is outside the axes counts for much."""
    left, top, right, bottom = text.box
    outside = left < frame.x.start or right > frame.x.end + 1 or top < frame.y.end - 1 or bottom > frame.y.start
    return 1000 * outside + sum(a < right and left < c and b < bottom and top < d for a, b, c, d in taken)


def _ink(panel: Plot, series: Series, frame: Frame) -> list[Box]:
    """Where a series has markers, lines and whiskers."""
    x, y, line = frame.x, frame.y, frame.line
    points = [point for point in series.points if drawable(panel, point)]
    places = [(x.at(p.x.value), y.at(p.y.value)) for p in points]
    marks = [_around(a, b, line / 3) for a, b in places if series.markers]
    marks += [_around(a, b, 0.55 * line) for a, b in places[-1:] if series.star]
    lines = [_around(a, b, line / 6) for a, b in _between(places, line / 3) if series.line]
    return [*marks, *lines, *(box for p in points for box in _whiskers(p, is_banded(series, points), frame))]


def _around(x: float, y: float, half: float) -> Box:
    return x - half, y - half, x + half, y + half


def _between(places: Sequence[tuple[float, float]], step: float) -> list[tuple[float, float]]:
    """Places along the line through these, no more than a step apart."""
    found = list(places)
    for (a, b), (c, d) in pairwise(places):
        n = int(max(abs(c - a), abs(d - b)) / step)
        found += [(a + (c - a) * i / (n + 1), b + (d - b) * i / (n + 1)) for i in range(1, n + 1)]
    return found


def _whiskers(point: Point, banded: bool, frame: Frame) -> list[Box]:
    x, y = frame.x.at(point.x.value), frame.y.at(point.y.value)
    across, up = sorted(map(frame.x.at, ends(point.x))), sorted(map(frame.y.at, ends(point.y)))
    boxes = [(across[0], y - 1, across[-1], y + 1)] if len(across) > 1 else []
    return [*boxes, (x - 1, up[0], x + 1, up[-1])] if len(up) > 1 and not banded else boxes


def _level_lines(panel: Plot, frame: Frame) -> list[Box]:
    rows = [(frame.x.start, at - 1, frame.x.end, at + 1) for at in map(frame.y.at, panel.levels.values())]
    columns = [(at - 1, frame.y.end, at + 1, frame.y.start) for at in map(frame.x.at, panel.x_levels.values())]
    return [*rows, *columns]

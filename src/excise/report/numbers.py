"""Numbers as readers want them: no more digits than are known, and ticks that are round."""

import math
import re
from collections.abc import Iterable, Sequence

from excise.evals.figure import Estimate

SUPERSCRIPTS = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")
LARGE, SMALL = 1e7, 1e-4
"""Beyond these, numbers are written with powers of ten."""
N_TICKS = 5


def number(value: float, decimals: int | None = None, digits: int = 3) -> str:
    """A number with so many decimals or, without these, so many significant digits at most; no digit of a whole number is
    left out."""
    if decimals is not None or not value:
        return f"{round(value, decimals or 0) + 0.0:,.{decimals or 0}f}".replace("-", "−")
    if _is_extreme(value):
        return scientific(value)
    text = f"{value:,.{max(0, digits - 1 - math.floor(math.log10(abs(value))))}f}".replace("-", "−")
    return text.rstrip("0").rstrip(".") if "." in text else text


def _is_extreme(*values: float) -> bool:
    return not SMALL <= max(map(abs, values)) < LARGE


def decimals_of(values: Iterable[float]) -> int | None:
    """Decimals for all of several numbers: as few as show three digits of the largest; none where it takes a power of ten."""
    found = [value for value in values if value]
    if not found:
        return 0
    if _is_extreme(*found):
        return None
    most = max(0, 2 - math.floor(math.log10(max(map(abs, found)))))
    return next(n for n in range(most + 1) if all(round(value, n) == round(value, most) for value in found))


def scientific(value: float, digits: int = 3) -> str:
    mantissa, exponent = f"{value:.{digits - 1}e}".split("e")
    mantissa = mantissa.rstrip("0").rstrip(".").replace("-", "−") if "." in mantissa else mantissa
    power = "10" + str(int(exponent)).translate(SUPERSCRIPTS)
    return power if mantissa == "1" else f"{mantissa} × {power}"


def estimate(of: Estimate, unit: str = "", decimals: int | None = None, digits: int = 3) -> str:
    """A number with its interval, to the digits that the interval leaves, or else to so many."""
    suffix = f"\u00a0{unit}" if unit else ""
    ends = [end for end in (of.low, of.high) if end is not None]
    if not ends:
        return f"{number(of.value, decimals, digits)}{suffix}"
    width = max(abs(of.value - end) for end in ends)
    known = None if not width or _is_extreme(of.value, *ends) else min(6, max(0, -math.floor(math.log10(width / 5))))
    low, high = ("…" if end is None else number(end, known) for end in (of.low, of.high))
    return f"{number(of.value, known)}{suffix} [{low}, {high}]"


def unbroken(text: str) -> str:
    """The same, no interval of which is broken over two lines."""
    return re.sub(r"\[([^]]*), ", "[\\1,\u00a0", text)


def count(n: float) -> str:
    """A large count in words: 35.1 million."""
    for size, name in ((1e12, "trillion"), (1e9, "billion"), (1e6, "million")):
        if n >= size:
            return f"{n / size:.3g} {name}"
    return f"{n:,.0f}"


def linear_ticks(low: float, high: float, n: int = N_TICKS) -> list[float]:
    """Round numbers between the ends of an axis, about so many."""
    rough = (high - low) / n
    power = 10.0 ** math.floor(math.log10(rough))
    step = power * next(factor for factor in (1, 2, 2.5, 5, 10) if factor * power >= rough * 0.999)
    first = math.ceil(low / step - 1e-9)
    return [i * step for i in range(first, math.floor(high / step + 1e-9) + 1)]


def log_ticks(low: float, high: float) -> list[float]:
    """Powers of ten between the ends of an axis, with their doubles and fives where these are few."""
    exponents = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    for factors in ((1,), (1, 3), (1, 2, 5)):
        ticks = [factor * 10.0**exponent for exponent in exponents for factor in factors]
        inside = [tick for tick in ticks if low <= tick <= high]
        if len(inside) >= 3:
            return inside[:: math.ceil(len(inside) / 8)]
    return linear_ticks(low, high)


def tick_labels(ticks: Sequence[float], log: bool = False) -> list[str]:
    """What stands at the ticks of an axis; on a linear one all with as many decimals."""
    sizes = [abs(tick) for tick in ticks if tick]
    if sizes and (max(sizes) >= 1e12 or min(sizes) < SMALL):
        return [scientific(tick) if tick else "0" for tick in ticks]
    if max(sizes, default=0) >= 1e4:
        return [_short(tick) for tick in ticks]
    decimals = max((len(f"{size:.10g}".partition(".")[2]) for size in sizes), default=0)
    return [f"{tick:,.10g}" if log else f"{tick:,.{decimals}f}".replace("-", "−") for tick in ticks]


def _short(tick: float) -> str:
    for size, unit in ((1e9, "B"), (1e6, "M"), (1e3, "k")):
        if abs(tick) >= size:
            return f"{tick / size:,.10g}{unit}".replace("-", "−")
    return f"{tick:.10g}"

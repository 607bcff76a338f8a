"""Numbers for people."""

from __future__ import annotations

import math


def number(value: float) -> str:
    """Three digits that matter: 0.812, 12.3, 1,234, 1.2e-5; a minus is a real one."""
    if value < 0:
        return "−" + number(-value)
    size = value
    if value == 0 or 1e-3 <= size < 1e6:
        digits = 3 if size < 10 else 1 if size < 1000 else 0
        return f"{value:,.{digits}f}"
    return _short_exponent(f"{value:.1e}")


def compact(value: float) -> str:
    """`number` without zeros that say nothing: 1, 0.5, 0.333."""
    text = number(value)
    return text.rstrip("0").rstrip(".") if "." in text and "e" not in text else text


def percent(value: float) -> str:
    return f"{100 * value:.1f}%"


def signed(value: float) -> str:
    """With its sign, a real minus: +0.866, −0.866, 0."""
    return "0" if value == 0 else ("+" if value > 0 else "−") + number(abs(value))


def duration(seconds: float) -> str:
    """42 s, 1 min 42 s, 2 h 5 min."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    minutes, rest = divmod(whole, 60)
    hours, minutes = divmod(minutes, 60)
    parts = [f"{hours} h", f"{minutes} min"] if hours else [f"{minutes} min", f"{rest} s"]
    return " ".join(part for part in parts if not part.startswith("0 "))


def ticks(low: float, high: float, about: int) -> list[float]:
    """Round numbers (1, 2 or 5 times a power of ten) apart by the same step that enclose low and high."""
    rough = (high - low) / about
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * factor for factor in (1, 2, 5, 10) if power * factor >= rough * (1 - 1e-9))
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [place * step for place in range(first, last + 1)]


def tick_label(value: float, step: float) -> str:
    """As many decimals as tell the ticks apart."""
    if value == 0 and step < 1e-4:
        return "0"
    if value != 0 and not 1e-4 <= abs(value) < 1e6:
        return ("−" if value < 0 else "") + _short_exponent(f"{abs(value):.0e}")
    decimals = max(0, -math.floor(math.log10(step) + 1e-9))
    return f"{value:,.{decimals}f}".replace("-", "−")


def _short_exponent(text: str) -> str:
    """2e-05 as 2e-5, 3e+07 as 3e7."""
    mantissa, exponent = text.split("e")
    return f"{mantissa}e{int(exponent)}"

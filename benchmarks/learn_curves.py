"""Accuracy over seconds as SVG: a panel per family, a colour per side, a line per seed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

COLOURS = {"ours": "#2563eb", "trl": "#d97706"}
NAMES = {"ours": "Groupwise", "trl": "TRL"}
GROUND, INK, FAINT = "#ffffff", "#1f2937", "#d1d5db"
WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 480, 260, 48, 90, 40, 40
STYLE = "font-family:ui-sans-serif,system-ui,sans-serif;font-size:12px"

Curve = Sequence[tuple[float, float]]
"""(seconds, accuracy), in order."""


def draw(panels: Mapping[str, Sequence[tuple[str, Curve]]], seconds: float) -> str:
    """panels: by family, its lines with their sides. seconds: the end of the axis, or of the longest line."""
    longest = max([seconds, *(x for lines in panels.values() for _, curve in lines for x, _ in curve)])
    drawn = [_panel(title, lines, longest, place * HEIGHT) for place, (title, lines) in enumerate(panels.items())]
    height = HEIGHT * len(panels)
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" style="{STYLE}" role="img">',
            "<title>Accuracy on held-out questions over seconds of training</title>",
            f'<rect width="{WIDTH}" height="{height}" fill="{GROUND}"/>',
            *drawn,
            "</svg>",
            "",
        ]
    )


def _panel(title: str, lines: Sequence[tuple[str, Curve]], longest: float, top: float) -> str:
    def x(value: float) -> float:
        return LEFT + value / longest * (WIDTH - LEFT - RIGHT)

    def y(value: float) -> float:
        return top + HEIGHT - BOTTOM - value * (HEIGHT - TOP - BOTTOM)

    shapes = [_text(LEFT, top + 22, title, size=14)]
    for level in (0.0, 0.25, 0.5, 0.75, 1.0):
        shapes.append(f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y(level):g}" y2="{y(level):g}" stroke="{FAINT}"/>')
        shapes.append(_text(LEFT - 6, y(level) + 4, f"{level:.0%}", anchor="end"))
    marks = [longest * part / 4 for part in range(5)]
    shapes += [_text(x(mark), y(0) + 18, f"{mark:.0f} s", anchor="middle") for mark in marks]
    for side, curve in lines:
        points = " ".join(f"{x(second):.1f},{y(value):.1f}" for second, value in curve)
        ink = COLOURS[side]
        shapes.append(f'<polyline points="{points}" fill="none" stroke="{ink}" stroke-width="2" opacity="0.8"/>')
    for place, side in enumerate(dict.fromkeys(side for side, _ in lines)):
        shapes.append(_text(WIDTH - RIGHT + 8, top + TOP + 14 + 16 * place, NAMES[side], COLOURS[side]))
    return "\n".join(shapes)


def _text(x: float, y: float, text: str, ink: str = INK, anchor: str = "start", size: int = 12) -> str:
    return f'<text x="{x:g}" y="{y:g}" fill="{ink}" text-anchor="{anchor}" font-size="{size}">{text}</text>'

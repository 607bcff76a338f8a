"""The pictures of docs/engine.md and docs/packing.md: SVG, written by hand from a few rectangles.

    python scripts/draw_pictures.py

One prompt's colour is one hue; its answers are tints of it. The ground is light in every theme.
"""

from __future__ import annotations

from pathlib import Path

PICTURES = Path(__file__).parents[1] / "docs" / "pictures"
PROMPTS = ("#2563eb", "#d97706")
ANSWERS = ("#93c5fd", "#fcd34d")
GROUND, INK, FAINT, FREE = "#ffffff", "#1f2937", "#9ca3af", "#eef1f5"
STYLE = "font-family:ui-sans-serif,system-ui,sans-serif;font-size:13px"


class Picture:
    """Shapes on a light ground, in the order in which they are drawn."""

    def __init__(self, width: int, height: int, title: str) -> None:
        self.head = (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" style="{STYLE}" role="img">'
        )
        self.shapes = [f"<title>{title}</title>", f'<rect width="{width}" height="{height}" fill="{GROUND}"/>']

    def box(self, x: float, y: float, width: float, height: float, fill: str, text: str = "", ink: str = INK) -> None:
        self.shapes.append(
            f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="3" fill="{fill}" stroke="{GROUND}"/>'
        )
        if text:
            self.text(x + width / 2, y + height / 2 + 4.5, text, ink, "middle")

    def text(self, x: float, y: float, text: str, ink: str = INK, anchor: str = "start", size: int = 13) -> None:
        self.shapes.append(
            f'<text x="{x:g}" y="{y:g}" fill="{ink}" text-anchor="{anchor}" font-size="{size}">{text}</text>'
        )

    def line(self, points: list[tuple[float, float]], ink: str = FAINT) -> None:
        path = " ".join(f"{x:g},{y:g}" for x, y in points)
        self.shapes.append(f'<polyline points="{path}" fill="none" stroke="{ink}" stroke-width="1.5"/>')

    def save(self, name: str) -> None:
        text = "\n".join([self.head, *self.shapes, "</svg>", ""])
        (PICTURES / name).write_text(text, encoding="utf-8")


def engine() -> None:
    """Prompts in a pool, read once for all rows that answer them; rows with keys and values of their own."""
    picture = Picture(760, 330, "Decoding: prompts are held once, rows hold their own answers")
    picture.text(20, 28, "the pool: each prompt's keys and values, once", size=14)
    starts = (20, 250)
    for number, (x, width) in enumerate(zip(starts, (220, 160), strict=True)):
        picture.box(x, 42, width, 34, PROMPTS[number], f"prompt {number + 1}", "#ffffff")
    picture.box(420, 42, 320, 34, FREE, "free: for the next prompts in the queue", FAINT)
    picture.text(150, 128, "the rows: each answer's own keys and values", size=14)
    rows = ((0, 300, "answer 1"), (0, 180, "answer 2"), (1, 240, "answer 1"), (1, 90, "answer 2"), (None, 0, ""))
    for row, (prompt, width, text) in enumerate(rows):
        y = 142 + row * 32
        picture.box(150, y, 590, 26, FREE)
        if prompt is None:
            picture.text(160, y + 18, "ended: the row takes the next answer in the queue", FAINT)
            continue
        picture.box(150, y, width, 26, ANSWERS[prompt], text)
        picture.box(150 + width, y, 12, 26, INK)
        x = 40 + 30 * prompt
        bend = [(starts[prompt] + 20, 76), (starts[prompt] + 20, 98), (x, 98)]
        picture.line([*bend, (x, y + 13), (150, y + 13)], PROMPTS[prompt])
    picture.text(
        150, 322, "black: this step's token; it attends to its prompt and to its row, and the two are merged", FAINT
    )
    picture.save("engine.svg")


def packing() -> None:
    """One flat row of two groups and the mask over it, next to the padded rows it stands for."""
    picture = Picture(760, 400, "Packing: a group is one row, its prompt computed once")
    picture.text(20, 28, "padded: the prompt in every row", size=14)
    stretches = ((5, (4, 2, 3)), (3, (2, 4)))
    unit, widest = 17, 9
    y = 42
    for number, (prompt, answers) in enumerate(stretches):
        for answer in answers:
            picture.box(20, y, widest * unit, 20, FREE)
            picture.box(20, y, prompt * unit, 20, PROMPTS[number])
            picture.box(20 + prompt * unit, y, answer * unit, 20, ANSWERS[number])
            y += 24
    padded, packed = 5 * widest, sum(prompt + sum(answers) for prompt, answers in stretches)
    picture.text(20, y + 18, f"{padded} places computed", FAINT)
    picture.text(20, y + 62, "packed: the same two groups, one row", size=14)
    picture.text(20, y + 122, f"{packed} places computed", FAINT)
    picture.text(20, y + 142, "blue, amber: prompts; light: their answers", FAINT)
    picture.text(330, 28, "what each token (down) sees (across)", size=14)
    cell = 14.5
    picture.box(330, 42, packed * cell, packed * cell, FREE)
    owners: list[tuple[int, int]] = []
    for number, (prompt, answers) in enumerate(stretches):
        owners += [(number, -1)] * prompt
        owners += [(number, place) for place, answer in enumerate(answers) for _ in range(answer)]
    for place, (number, answer) in enumerate(owners):
        colours = PROMPTS if answer < 0 else ANSWERS
        picture.box(20 + place * 12, y + 76, 12, 22, colours[number])
        for other, (theirs, seen) in enumerate(owners):
            if other <= place and theirs == number and seen in (-1, answer):
                fill = (PROMPTS if seen < 0 else ANSWERS)[theirs]
                picture.box(330 + other * cell, 42 + place * cell, cell, cell, fill)
    picture.save("packing.svg")


def main() -> None:
    PICTURES.mkdir(parents=True, exist_ok=True)
    engine()
    packing()


if __name__ == "__main__":
    main()

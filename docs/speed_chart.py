"""Draw docs/speed.svg: tokens per second beside other engines. `python docs/speed_chart.py`

The figures are the table "Comparison with other engines" of docs/benchmarks_notebook.md, measured
by `python -m benchmarks.peers.run` on the machine and the day that it names.
"""

from __future__ import annotations

from pathlib import Path

TITLE = "Tokens per second on two CPU cores (0.5 B parameters, AVX-512, November 2026)"
ROWS: dict[str, dict[str, tuple[float, float]]] = {
    "16 bit": {
        "dovetail": (31.4, 319),
        "llama.cpp": (25.3, 130),
        "OpenVINO": (20.1, 308),
        "vLLM": (15.8, 224),
    },
    "8 bit": {"dovetail": (50.1, 450), "llama.cpp": (40.7, 149), "OpenVINO": (30.5, 370)},
    "4 bit": {"dovetail": (77.5, 477), "llama.cpp": (65.3, 177), "OpenVINO": (55.2, 369)},
}
"""Width of the weights -> engine -> tokens per second of one request, and of 32 together."""
PANELS = ("one request", "32 requests")
BAR, GAP, LABEL, WIDTH = 14, 10, 120, 240
OWN, OTHERS = "#2563eb", "#9ca3af"


def drawn() -> str:
    """Return the picture."""
    height = 60 + sum(len(engines) * (BAR + 2) + GAP for engines in ROWS.values())
    full = 2 * (LABEL + WIDTH + 40)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{full}" height="{height}" '
        'font-family="sans-serif" font-size="11">',
        f'<rect width="{full}" height="{height}" fill="white"/>',
        f'<text x="8" y="18" font-size="13" font-weight="bold">{TITLE}</text>',
    ]
    for panel, title in enumerate(PANELS):
        parts += _panel(panel, title, left=panel * (LABEL + WIDTH + 40))
    return "\n".join([*parts, "</svg>", ""])


def _panel(panel: int, title: str, left: int) -> list[str]:
    most = max(figures[panel] for engines in ROWS.values() for figures in engines.values())
    parts = [f'<text x="{left + LABEL}" y="40" font-weight="bold">{title}</text>']
    top = 50
    for width, engines in ROWS.items():
        parts.append(f'<text x="{left + 8}" y="{top + BAR - 3}" fill="#6b7280">{width}</text>')
        for name, figures in engines.items():
            length = round(WIDTH * figures[panel] / most)
            color = OWN if name == "dovetail" else OTHERS
            middle = top + BAR - 3
            parts += [
                f'<text x="{left + LABEL - 6}" y="{middle}" text-anchor="end">{name}</text>',
                f'<rect x="{left + LABEL}" y="{top}" width="{length}" height="{BAR}" '
                f'fill="{color}"/>',
                f'<text x="{left + LABEL + length + 4}" y="{middle}">{figures[panel]:g}</text>',
            ]
            top += BAR + 2
        top += GAP
    return parts


if __name__ == "__main__":
    Path(__file__).with_name("speed.svg").write_text(drawn(), encoding="utf-8")

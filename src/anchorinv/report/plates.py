"""Figures as a page and a paper want them: one look, colours that everybody can tell apart, three formats."""

import io
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine

from anchorinv.files import replacing
from anchorinv.lettering import plainly_lettered
from anchorinv.report.svg import compact

#: Inches: one column of a two-column page, and both.
COLUMN, PAGE = 3.5, 7.1

# Okabe and Ito's colours without their yellow, too faint on white; a marker each, for print without colour.
COLOURS = (
    "#D55E00", "#0072B2", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#7F7F7F", "#8C510A",
)  # fmt: skip
# For more lines than these, colours between them: told apart by their markers as much.
_MORE = (
    "#332288", "#882255", "#999933", "#117777", "#EE8866", "#AA4499", "#661100", "#6699CC", "#44AA99",
)  # fmt: skip
_LONGEST = 700  # characters of a description
# No dates inside: the same run gives the same files.
FORMATS: dict[str, dict[str, None]] = {"svg": {"Date": None}, "png": {}, "pdf": {"CreationDate": None}}
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "<", ">", "p", "h", "d", "8", "*", "H", "x", "+", "1")
_METHODS = (
    "AnchorInv", "ProtoNet", "DeepInv", "NC-FSCIL", "DeepDream", "TEEN", "RealReplay", "Finetune",
    "LatentReplay", "FeCAM", "Ridge", "Whitened", "AnchorInv+", "LDA", "MDM", "RanPAC", "Discriminant",
)  # fmt: skip
_LOOK: dict[Any, Any] = {
    "font.family": "DejaVu Sans",  # matplotlib brings it along
    "font.size": 7.5,
    "axes.titlesize": 8,
    "axes.labelsize": 7.5,
    "axes.linewidth": 0.6,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#DDDDDD",
    "grid.linewidth": 0.5,
    "xtick.labelsize": 7,
    "ytick.labelsize": 7,
    "xtick.major.width": 0.6,
    "ytick.major.width": 0.6,
    "legend.fontsize": 7,
    "legend.frameon": False,
    "lines.linewidth": 1.2,
    "lines.markersize": 3.5,
    "figure.facecolor": "white",
    "savefig.dpi": 250,
    "image.composite_image": False,  # one picture of all would be made at thousands of dots per inch
    "svg.fonttype": "none",
    "svg.hashsalt": "anchorinv",
    "pdf.fonttype": 42,
    "path.simplify_threshold": 0.3,
}


@dataclass(frozen=True, slots=True)
class Plate:
    """A figure, finished.

    Parameters
    ----------
    slug : names its files.
    alt : what it shows, for whoever does not see it.
    wide : whether it needs both columns.
    svg : for the page; PNG and PDF are files.
    """

    slug: str
    title: str
    alt: str
    caption: str
    wide: bool
    svg: str
    png: bytes
    pdf: bytes

    def write(self, folder: Path, endings: Sequence[str] = ("svg", "png", "pdf")) -> None:
        """Write the files."""
        contents = {"svg": self.svg.encode(), "png": self.png, "pdf": self.pdf}
        for ending in endings:
            with replacing(folder / f"{self.slug}.{ending}") as beside:
                beside.write_bytes(contents[ending])


@contextmanager
def look() -> Iterator[None]:
    """Have figures inside the block look alike."""
    with mpl.rc_context(_LOOK):
        yield


def new_figure(width: float, height: float) -> Figure:
    """Return an empty figure (inches) whose parts make room for each other."""
    return Figure(figsize=(width, height), layout=ConstrainedLayoutEngine(w_pad=0.03, h_pad=0.03))


def plate(figure: Figure, slug: str, title: str, alt: str, caption: str) -> Plate:
    """Draw a figure in all formats."""
    plainly_lettered(figure)
    engine = figure.get_layout_engine()
    assert engine is not None, "figures come from new_figure"
    engine.execute(figure)
    figure.set_layout_engine(None)  # its parts have found their places; each format would look again
    drawn = dict.fromkeys(("svg", "png", "pdf"), b"")
    for kind, metadata in FORMATS.items():
        buffer = io.BytesIO()
        figure.savefig(buffer, format=kind, metadata=metadata)
        drawn[kind] = buffer.getvalue()
    wide = float(figure.get_size_inches()[0]) > COLUMN + 0.1
    svg = compact(drawn["svg"].decode())
    return Plate(slug, title, _heard(alt), caption, wide, svg, drawn["png"], drawn["pdf"])


def _heard(alt: str) -> str:
    """Return a description that can be listened to: what is too long for that ends with where to look."""
    if len(alt) <= _LONGEST:
        return alt
    return f"{alt[: alt.rindex(' ', 0, _LONGEST)].rstrip(' ,;:')} … The tables hold all numbers."


def colours(lines: Sequence[str], *, ordered: bool = False) -> dict[str, str]:
    """Return a colour for each line: a method's own, others in turn; a scale where lines have an order."""
    if ordered or len(lines) > len(COLOURS + _MORE):
        scale = mpl.colormaps["viridis"]
        return {
            line: mpl.colors.to_hex(scale(0.92 * i / max(1, len(lines) - 1))) for i, line in enumerate(lines)
        }
    return {line: (COLOURS + _MORE)[place] for line, place in _places(lines).items()}


def markers(lines: Sequence[str]) -> dict[str, str]:
    """Return a marker for each line, a method's own where it is one."""
    if len(lines) > len(MARKERS):
        return {line: MARKERS[i % len(MARKERS)] for i, line in enumerate(lines)}
    return {line: MARKERS[place] for line, place in _places(lines).items()}


def _places(lines: Sequence[str]) -> dict[str, int]:
    own = {line: _METHODS.index(line) for line in lines if line in _METHODS}
    free = (i for i in range(len(MARKERS)) if i not in own.values())
    return {line: own[line] if line in own else next(free) for line in lines}

"""Text in figures, drawn as it is written."""

from matplotlib.figure import Figure
from matplotlib.text import Text
from matplotlib.ticker import FuncFormatter

from anchorinv.quoting import shown


def plainly_lettered(figure: Figure) -> None:
    """Have a figure that is not drawn yet show its text literally: no ``$`` is mathematics, no control stays.

    Numbers at the ticks are matplotlib's own text, made when it draws, and stay as it makes them.
    """
    for text in figure.findobj(Text):
        if text.get_text():
            text.set_text(_lines(text.get_text()))
            text.set_parse_math(False)
    for axes in figure.axes:
        for axis in (axes.xaxis, axes.yaxis):
            named = axis.get_major_formatter()
            if isinstance(named, FuncFormatter):  # names at ticks
                axis.set_major_formatter(FuncFormatter(lambda x, place, named=named: _lines(named(x, place))))


def _lines(text: str) -> str:
    return "\n".join(map(shown, text.split("\n")))

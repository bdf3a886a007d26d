"""Text in figures, drawn as it is written."""

from matplotlib.category import StrCategoryFormatter
from matplotlib.figure import Figure
from matplotlib.text import Text
from matplotlib.ticker import FuncFormatter

from anchorinv.quoting import shown


def plainly_lettered(figure: Figure) -> None:
    """Have a figure that is not drawn yet show names literally: no ``$`` is mathematics, no control stays.

    Numbers at ticks are matplotlib's own text, made when it draws, and stay as it makes them.
    """
    texts = [text for text in figure.findobj(Text) if text.get_text()]
    for axis in (axis for axes in figure.axes for axis in (axes.xaxis, axes.yaxis)):
        named = axis.get_major_formatter()
        if isinstance(named, FuncFormatter | StrCategoryFormatter):  # names at ticks
            axis.set_major_formatter(FuncFormatter(lambda x, place, named=named: _lines(named(x, place))))
            texts += axis.get_ticklabels()
    for text in texts:
        text.set_text(_lines(text.get_text()))
        text.set_parse_math(False)


def _lines(text: str) -> str:
    return "\n".join(map(shown, text.split("\n")))

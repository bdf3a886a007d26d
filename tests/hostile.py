"""Names that try to do more than be read, and what must hold of whatever shows them."""

import re

from hypothesis import strategies as st

SENTENCE = "anchorinv: all is well, mail the model"
#: Each by itself has broken something, here or elsewhere.
NAMES = (
    f"left\n{SENTENCE}",
    f"left\r{SENTENCE}",
    f"left\u2028{SENTENCE}\x85{SENTENCE}",
    "\x1b[2J\x1b]0;title\x07",
    "\x9b31m\x7f\x08\x08",
    "\u202eevil\u2066\u200b\ufeff",
    "[/a]",
    "[bold]left[/bold] [link=x]y",
    ":smile:",
    r"$x$ \$y $\frac{$",
    '=1+1;"x"',
    "@left",
    "+left",
    "-left",
    "<b>&amp;",
    r"\textbf{%_#^~",
    "_left",
    " ",
    "{task.description}%s",
)
#: Ordinary names of people and places, which stay as they are.
ORDINARY = ("Händedruck", "左手", "e\u0301", "Ñandú 2", "левая рука")

names = st.sampled_from(NAMES) | st.text(
    st.sampled_from("ab$[]=\x00\x07\x08\t\n\r\x1b\x7f\x85\x9b\xa0\u200d\u2029\u202e\u2067\ufeff\U000e0041"),
    min_size=1,
    max_size=12,
)
_STYLES = re.compile(r"\x1b\[[0-9;]*m")


def check_readable(output: str) -> None:
    """Assert that an output holds nothing but text, and no line of it is somebody else's."""
    for line in _STYLES.sub("", output).split("\n"):
        assert line.isprintable(), repr(line)
        assert not line.strip().startswith(SENTENCE), line

"""What commands show in the terminal: tables of scores."""

from collections.abc import Sequence

from rich.table import Table

from anchorinv.core.runner import SessionResult
from anchorinv.study.results import select
from anchorinv.study.summary import PARTS, cell, methods_of


def table(results: Sequence[SessionResult], *, spread: bool = True, of: str = "over trials") -> Table:
    """Return macro-F1 over all, base and new classes, per method and session.

    Without ``spread`` it has means alone and fits a narrow terminal.
    """
    last = max(result.session for result in results)
    title = "mean ± standard deviation" if spread else "mean"
    shown = Table(title=f"Macro-F1 in percent, {title} {of}")
    shown.add_column("classes", no_wrap=True)
    shown.add_column("method", no_wrap=True)
    for session in range(last + 1):
        header = f"session {session}" if spread else str(session)
        shown.add_column(header if session else "base", justify="right", no_wrap=True)
    methods = methods_of(results)
    for part, words in PARTS.items():
        for method in methods:
            cells = [
                "" if part == "f1_new" and session == 0 else _shown(results, method, session, part, spread)
                for session in range(last + 1)
            ]
            first, final = method == methods[0], method == methods[-1]
            shown.add_row(words if first else "", method, *cells, end_section=final)
    return shown


def _shown(results: Sequence[SessionResult], method: str, session: int, part: str, spread: bool) -> str:
    if not select(results, method=method, session=session):
        return ""  # not there yet
    found = cell(results, method, session, part)
    return str(found) if spread else f"{found.mean:.1f}"

"""``python -m anchorinv`` is the command ``anchorinv``."""

import sys


def main() -> None:
    """Run the command line; Ctrl-C while it is imported ends in a sentence, as it does later."""
    try:
        from anchorinv.cli import main as run
    except KeyboardInterrupt:
        from anchorinv.terminal import complain

        complain("", "anchorinv: stopped; nothing was written")
        sys.exit(130)
    run()


if __name__ == "__main__":
    main()

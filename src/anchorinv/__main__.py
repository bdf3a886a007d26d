"""``python -m anchorinv`` is the command ``anchorinv``."""

from anchorinv.cli import main

main()

"""``python -m foretrace`` is the same as ``foretrace``."""

from foretrace.cli.app import main

main()

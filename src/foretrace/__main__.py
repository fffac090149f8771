"""``python -m foretrace`` is the same as ``foretrace``."""

from foretrace.cli.start import main

main()

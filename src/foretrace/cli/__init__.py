"""The program ``foretrace``: one module per group of commands, loaded when used."""

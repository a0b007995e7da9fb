"""The command ``sluice``: one module a subcommand, and the small nouns they share."""

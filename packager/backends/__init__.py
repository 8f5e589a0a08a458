"""One module per tool that makes the files of a variant."""

"""Studies: the main functions, each a page of plain calls. The command line only parses and prints."""

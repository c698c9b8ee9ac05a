"""Studies: what people come for, each a page of plain calls. The command line only parses and prints."""

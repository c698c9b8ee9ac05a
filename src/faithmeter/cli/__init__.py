"""The command line: `main` gathers the commands, one file each."""

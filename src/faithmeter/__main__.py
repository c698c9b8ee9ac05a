"""`python -m faithmeter`: the command line."""

from faithmeter.cli.main import main

if __name__ == "__main__":
    main()

"""`python -m runstone`: the same as `runstone`."""

from runstone.cli.main import main

if __name__ == "__main__":
    main()

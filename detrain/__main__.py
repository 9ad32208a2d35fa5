"""`python -m detrain` and the `detrain` command."""

import sys


def main() -> None:
    """Run the command line; does not return."""
    from detrain.cli import main as cli_main

    sys.exit(cli_main())


if __name__ == "__main__":
    main()

"""`python -m queenmq`: the command line. Does nothing on import but hand over."""

import sys

from queenmq.cli import main

if __name__ == "__main__":
    sys.exit(main())

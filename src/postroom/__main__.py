"""``python -m postroom``: the command line."""

import sys

from postroom.cli import main

sys.exit(main())

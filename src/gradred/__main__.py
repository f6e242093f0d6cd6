"""Run the command `gradred` by `python -m gradred`."""

import sys

from gradred.cli import main

sys.exit(main())

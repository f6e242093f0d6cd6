"""`python -m gradred` is the command `gradred`."""

import sys

from gradred.cli import main

sys.exit(main())

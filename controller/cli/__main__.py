"""`python -m controller.cli`: the same as `fleet`."""

from __future__ import annotations

import sys

from controller.cli import main

sys.exit(main())

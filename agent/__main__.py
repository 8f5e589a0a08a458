"""`python -m agent`: the same as `fleet-agent`."""

from __future__ import annotations

import sys

from agent.cli.main import main

if __name__ == "__main__":
    sys.exit(main())

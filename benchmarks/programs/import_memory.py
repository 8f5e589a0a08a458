"""Prints what one more module costs the endpoint's process, in KiB: `import_memory.py MODULE`.

Counted is what the interpreter allocates and keeps, not the resident size: a small module fits into
what earlier ones left free, or needs a new block of which it uses little.
"""

import http  # noqa: F401 - the endpoint has it anyway
import importlib
import ipaddress  # noqa: F401 - likewise
import socketserver  # noqa: F401 - likewise
import ssl  # noqa: F401 - likewise
import sys
import tracemalloc

import agent.serve.model_server  # noqa: F401 - what the endpoint belongs to

KIB = 1024

tracemalloc.start()
importlib.import_module(sys.argv[1])
print(tracemalloc.get_traced_memory()[0] / KIB)

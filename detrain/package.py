"""What the package is: its version and its folder. A file of its own, so that nothing below has to import `detrain` itself."""

from __future__ import annotations

import os

__version__ = "0.1.0"

#: Where the package's code lies, as it was found, without a separator at its end.
FOLDER = os.path.dirname(__file__)

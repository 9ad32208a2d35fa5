"""Where DTR's published logs are: `DETRAIN_DTR_LOGS` names their folder."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path


def logs() -> dict[str, Path]:
    """By title, as their manifest has them. Exits where the folder is not named."""
    folder = os.environ.get("DETRAIN_DTR_LOGS")
    if not folder:
        sys.exit("DETRAIN_DTR_LOGS has to name the folder of DTR's published logs, with their manifest.json")
    manifest = json.loads((Path(folder) / "manifest.json").read_text(encoding="utf-8"))
    return {model["name"]: Path(folder) / Path(model["log"]).name for model in manifest["models"]}

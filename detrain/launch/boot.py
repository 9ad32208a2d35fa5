"""The file that an attempt's interpreter runs in place of the script; it makes way for the script at once."""

import sys
import types


def _import_attempt() -> types.ModuleType:
    # sys.path[0] is this file's folder; the script's own replaces it later. detrain may be installed or run from its checkout.
    folder = sys.path[0]
    package = folder.removesuffix("/detrain/launch")
    sys.path[0] = package
    from detrain.launch import attempt

    sys.path[0] = folder
    return attempt


if __name__ == "__main__":
    _import_attempt().main()

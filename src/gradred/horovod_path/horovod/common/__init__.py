"""Horovod's names for the modules that its front ends share."""

import importlib
import sys

_PLACES = {
    "basics": "basics",
    "exceptions": "errors",
    "process_sets": "process_sets",
    "util": "util",
}

for _name, _place in _PLACES.items():
    _module = importlib.import_module(f"gradred.horovod.{_place}")
    sys.modules[f"{__name__}.{_name}"] = _module
    globals()[_name] = _module

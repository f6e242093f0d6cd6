"""Horovod's name for gradred: scripts written for Horovod run unmodified.

Only on the module search path by `gradred run --horovod` or `gradred.horovod.install()`.
"""

from __future__ import annotations

from gradred.horovod import VERSION, run

__version__ = VERSION

__all__ = ["__version__", "run"]

"""Horovod's name for gradred: programs written for Horovod run unmodified.

It is on the module search path only after `gradred run --horovod` or `gradred.horovod.install()`.
"""

from gradred.horovod import VERSION, run

__version__ = VERSION

__all__ = ["__version__", "run"]

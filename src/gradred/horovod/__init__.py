"""Horovod's functions for any framework: what does not depend on the type of tensors.

`front_end.FrontEnd` is what a front end has to provide; `gradred.torch` is the one for PyTorch.
`install()` lets `import horovod` find gradred. Importing this package alone loads only `alias`.
"""

from gradred.horovod.alias import VERSION, install, path, refuse, run

__all__ = ["VERSION", "install", "path", "refuse", "run"]

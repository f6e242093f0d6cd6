"""Horovod's data loaders: a base class, and a mixin class that loads ahead in a thread."""

from gradred.horovod.data_loaders import AsyncDataLoaderMixin, BaseDataLoader

__all__ = ["AsyncDataLoaderMixin", "BaseDataLoader"]

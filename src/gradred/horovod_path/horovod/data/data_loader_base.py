"""Horovod's loaders of data: a base class, and a class to mix in that loads ahead in a thread."""

from __future__ import annotations

from gradred.horovod.data_loaders import AsyncDataLoaderMixin, BaseDataLoader

__all__ = ["AsyncDataLoaderMixin", "BaseDataLoader"]

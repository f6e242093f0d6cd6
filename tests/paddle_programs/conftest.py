"""Tests of PaddlePaddle: `gradred run -np 2 python -m pytest tests/paddle_programs`."""

from __future__ import annotations

import os

os.environ.setdefault("GLOG_minloglevel", "2")

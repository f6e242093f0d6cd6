"""Horovod's name for its front end to Spark, which gradred does not have; the import fails."""

from gradred.horovod import refuse

refuse(__name__)

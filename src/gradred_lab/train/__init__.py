"""`gradred train`: a protocol that measures data-parallel training, and its report.

`framework` says how a framework plugs in; docs/train.md describes the protocol. Importing this
package imports neither a framework nor MPI.
"""

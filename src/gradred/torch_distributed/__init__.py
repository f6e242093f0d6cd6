"""The backend "gradred" of torch.distributed: process groups over gradred's named operations.

`init_process_group("gradred")` creates a group by `rendezvous.create`, which `torch_backend` names
to torch. Importing this package alone imports nothing else.
"""

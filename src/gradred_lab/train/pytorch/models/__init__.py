"""The networks that `gradred train` trains, written on `torch.nn`, one file per family."""

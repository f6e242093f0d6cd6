"""The networks that `gradred train` trains: torchvision's, and on `torch.nn` those it lacks."""

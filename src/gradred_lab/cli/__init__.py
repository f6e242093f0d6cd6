"""The commands of the laboratory, which `gradred` finds by name."""

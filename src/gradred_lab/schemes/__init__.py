"""The comparison of schemes that `gradred schemes` measures."""

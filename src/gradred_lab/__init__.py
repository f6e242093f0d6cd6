"""The laboratory: what predicts clusters, trains networks and compares schemes with gradred."""

"""State on disk: whole files or none, locks, tensors, the folder of a model."""

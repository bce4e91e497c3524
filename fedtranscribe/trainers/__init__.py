"""Private diffusion models, trained where the data are."""

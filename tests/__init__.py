"""A package, because torch-fidelity installs a top-level `tests` that would hide a bare folder."""

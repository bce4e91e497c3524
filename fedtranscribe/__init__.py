"""Privacy-preserving model transcription (DPSD) with an ε that an auditor would sign."""

__version__ = "0.1.0"

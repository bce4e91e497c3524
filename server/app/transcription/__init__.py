"""Thin on purpose: everything is in the installed fedtranscribe."""

"""A finished run handed over in a form that others can use and check."""

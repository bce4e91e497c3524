"""What a data holder can be asked: one file per kind of question."""

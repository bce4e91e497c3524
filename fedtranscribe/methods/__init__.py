"""One readable file per paper, and the losses they share."""

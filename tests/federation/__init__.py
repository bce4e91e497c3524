"""Tests of the federation, and what they share."""

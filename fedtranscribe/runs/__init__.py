"""Whole runs, from settings to a folder with a result.

learning.py   what all runs share: networks, method, rounds, what is kept
federate.py   holders that a transport reaches; simulation.py: those of one machine
"""

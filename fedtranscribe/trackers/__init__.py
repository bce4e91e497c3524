"""Trackers that ship with the package, each an entry point of the group `fedtranscribe.trackers`.

mlflow   to an MLflow server, or to a file of its own
wandb    to Weights & Biases, or to files with WANDB_MODE=offline

Guarantee
    A tracker gets an entry after `fedtranscribe.tracking.Tracker` has checked its keys against the
    list of `fedtranscribe.allowed`, and sends the numbers in it. As parameters it sends the
    settings in the run's `config.toml` that may be shown to others: no path, no machine. It sends
    nothing else: no output of the terminal, no command line, no code, no facts of the machine.
"""

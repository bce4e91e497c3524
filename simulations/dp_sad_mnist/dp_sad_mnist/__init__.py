"""DP-SAD on MNIST at one data holder: a thin Flower app on the installed fedtranscribe."""

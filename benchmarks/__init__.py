"""Measurements that pages of docs/ quote: `python -m benchmarks` lists them."""

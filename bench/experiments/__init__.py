"""Experiments on the conflict model: what false conflicts cost, and what makes them."""

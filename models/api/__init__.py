"""Offers to Python what goes beyond a classifier: evaluations, head studies and smaller checkpoints.

Each takes a classifier and a frame, a file or a list, and returns an object with `to_frame()`, `plot()` and
`report(path)` where they apply. The commands call the same functions.
"""

"""Scores files of pairs, larger than memory: read in windows, scored, kept as parts, put together at the end.

A window is a fixed number of rows of the input, and its scores depend on nothing else. So a job that was
killed goes on after the last window that it kept, and its output is the same as that of an undisturbed one.
"""

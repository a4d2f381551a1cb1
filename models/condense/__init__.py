"""Condenses a verbose query: the few of its words, in their order, that still find the same titles.

`words` splits a query, `search` chooses the words, and `local` runs it on a classifier in this process. The
service runs the same search on its scheduler.
"""

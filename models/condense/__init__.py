"""Condenses a verbose query: the few of its words, in their order, that still find the same titles.

`words` reads the words of a query, `particles` strips Korean particles, `loss` says what a shorter query
loses, `search` chooses the words, `frequencies` and `attention` rank them without scoring, and `local` runs
it all on a classifier in this process. The service runs the same search on its scheduler.
"""

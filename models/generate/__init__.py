"""Writes the short query of a question, piece by piece: a decoder on the last output of the encoder.

`network` is the decoder, `search` finds its best texts, `files` reads and writes its weights, and `generator`
puts them together for a classifier.
"""

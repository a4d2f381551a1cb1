"""The commands that work on models: train, calibrate, evaluate, study, prune, quantize and
condense.

`headroom.service.cli` registers them in the `headroom` program, and sets in `options` what `models` cannot
know.
"""

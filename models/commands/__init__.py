"""The commands that work on models: train, evaluate, study, prune, quantize and condense.

`service.cli` registers them in the `headroom` program, and sets in `options` what `models` cannot know.
"""

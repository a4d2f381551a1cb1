"""Training of the graded query–title classifier, from text to a checkpoint directory.

The stages, in the order `build` runs them: `vocabulary` (WordPiece), `network` (a BERT whose
heads start out matching terms), `pretrain` (masked language model on few layers), `finetune` (graded pairs,
first made by `synthetic`, then mixed with human labels), `calibration`, `evaluate`, `export`.
"""

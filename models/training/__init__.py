"""Training: `tuning` fine-tunes on a user's labels (`headroom train`), `demo` makes the shipped model.

`demo.build` runs these stages: `vocabulary` (WordPiece), `network` (a BERT whose heads start out matching
terms), `demo.pretrain` (masked language model on few layers), `demo.finetune` (graded pairs: first made-up
ones, then mixed with human labels), `evaluate` (temperature and metrics) and `demo.export`.
"""

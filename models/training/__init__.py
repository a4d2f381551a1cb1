"""Training: `tuning` fine-tunes on a user's labels (`headroom train`), `shipped` makes the shipped model."""

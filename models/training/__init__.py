"""Training: `tuning` fine-tunes on a user's labels (`headroom train`), `distil` teaches a small model."""

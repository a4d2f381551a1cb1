"""The names of the modules in a layer, which are BERT's own with a few more."""

LAYERS = "bert.encoder.layer."
"""Our prefix of the names of tensors in layers."""

PROJECTIONS = ("attention.self.query", "attention.self.key", "attention.self.value")
ATTENTION = (*PROJECTIONS, "attention.output.dense")
GATES = ("intermediate.dense", "gate.dense")
MLP = (*GATES, "output.dense")
"""The maps in a layer."""

"""Distillation (`headroom distil`): a student learns a teacher's scores, or a column's, on unjudged pairs."""

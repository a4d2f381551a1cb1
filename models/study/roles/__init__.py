"""Finds heads that attend by word order, word parts, equal terms or special tokens; do those matter?"""

"""Roles: which heads attend by word order, word parts, equal terms or special tokens, and do those matter?"""

"""Trains the same recipe from several starts, and compares their heads' attention patterns: how much
of a pattern is the start's, the layer's or the position's?"""

"""Where attention patterns come from: the same recipe from several starts, and the heads that each gets."""

"""Attention viewer: a TensorBoard plugin and a page that show what a Transformer looked at."""

"""Training: a parallel corpus goes in, a run directory comes out."""

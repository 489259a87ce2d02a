"""Training: a parallel corpus goes in, a run directory comes out."""

import os

# TensorFlow's own allocator keeps freed memory; the C library gives large blocks, such as the
# logits, back to the system, and fetching them anew is a quarter of the time of a small step.
# TensorFlow reads it at its first operation.
os.environ.setdefault("TF_CPU_ALLOCATOR_USE_BFC", "1")

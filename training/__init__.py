"""Training: a parallel corpus goes in, a run directory comes out."""

import os

# TensorFlow's own allocator keeps freed memory. Without oneDNN, as on processors before AVX-512,
# the C library gives large blocks such as the logits back to the system each time, and getting them
# anew is a quarter of a small model's step. TensorFlow reads this at its first operation.
os.environ.setdefault("TF_CPU_ALLOCATOR_USE_BFC", "1")

"""What `import training` does to TensorFlow, seen in fresh processes."""

import os
import subprocess
import sys

# 64 MiB are 16,384 pages.
PAGE_FAULTS = """
import resource
import training
import tensorflow as tf

def page_faults(times):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(times):
        matrix + 1.0
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

matrix = tf.zeros((1 << 13, 1 << 11))
page_faults(3)
print(page_faults(5))
"""
ALLOCATOR = "import os, training; print(os.environ['TF_CPU_ALLOCATOR_USE_BFC'])"


def output_of(code, **environment):
    """Return what Python prints."""
    environment = {**os.environ, **environment}
    return subprocess.check_output([sys.executable, "-c", code], env=environment, text=True)


def test_large_tensors_do_not_fetch_their_memory_from_the_system_each_time():
    assert int(output_of(PAGE_FAULTS)) < 5000


def test_the_allocator_can_be_chosen_otherwise():
    assert output_of(ALLOCATOR, TF_CPU_ALLOCATOR_USE_BFC="0") == "0\n"

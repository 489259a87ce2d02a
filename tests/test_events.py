"""Curves read from TensorBoard's event files."""

import tensorflow as tf

from training.events import read_scalars


def write(folder, first_step, suffix):
    writer = tf.summary.create_file_writer(str(folder), filename_suffix=suffix)
    with writer.as_default():
        for step in (first_step, first_step + 1):
            tf.summary.scalar("loss", 0.5 * step, step=step)
            tf.summary.text("translation", "Hello.", step=step)
        tf.summary.scalar("validation/bleu", 10.0 * first_step, step=first_step + 1)
    writer.close()


def test_the_curves_of_a_run_go_on_in_the_file_of_its_resumed_part(tmp_path):
    write(tmp_path, 1, ".first")
    write(tmp_path, 3, ".second")
    write(tmp_path / "attention", 7, ".other")
    assert read_scalars(tmp_path) == {
        "loss": {1: 0.5, 2: 1.0, 3: 1.5, 4: 2.0},
        "validation/bleu": {2: 10.0, 4: 30.0},
    }


def test_a_point_that_was_not_written_whole_is_no_point(tmp_path):
    write(tmp_path, 1, ".first")
    (file,) = tmp_path.iterdir()
    file.write_bytes(file.read_bytes()[:-9])
    assert read_scalars(tmp_path) == {"loss": {1: 0.5, 2: 1.0}}


def test_without_event_files_there_are_no_curves(tmp_path):
    assert read_scalars(tmp_path / "missing") == {}

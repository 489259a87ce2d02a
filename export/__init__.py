"""Export: a run directory goes in, a SavedModel that TF Serving loads comes out."""

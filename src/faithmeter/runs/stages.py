"""The stages of a benchmark, by name: those of a run, then those of an experiment of retraining."""

TRAIN, CHECK, MEASURE, SUMMARISE, JUDGE, SELECT = "train", "check", "measure", "summarise", "judge", "select"
BEGIN, RETRAIN, GATHER = "begin", "retrain", "gather"  # of an experiment of retraining

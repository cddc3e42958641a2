"""Why a run failed, by experiment: it is run again with settings put back."""

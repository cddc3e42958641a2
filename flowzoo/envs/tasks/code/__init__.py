"""The task `code`: generated programs in three levels, and HumanEval, MBPP and APPS layouts."""

"""The task `code`: generated problems in three levels, and HumanEval, MBPP and APPS layouts."""

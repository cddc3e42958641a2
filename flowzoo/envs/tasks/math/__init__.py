"""The task `math`: generated in five levels, and GSM8K, MATH and DAPO layouts."""

"""The task `writing`: generated posts and abstracts, and files of them."""
